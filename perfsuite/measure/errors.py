"""What an instrument raises. A broken promise of the code under test is an `AssertionError`."""


class MeasurementError(Exception):
    """The instrument cannot measure this: the call or its arguments need to change."""


class RecompilationError(AssertionError):
    """A trace, lowering or backend compile happened where none was allowed.

    `function` is the name that JAX gives the compiled function, and `stage` is "trace", "lower" or "compile". `changes`
    are the causes, each a readable line such as `args[0]['ids']: shape was (8, 128), is (8, 96)`.
    """

    def __init__(self, message: str, *, function: str = "", stage: str = "", changes: tuple[str, ...] = ()):
        super().__init__(message)
        self.function = function
        self.stage = stage
        self.changes = changes


class SignatureWarning(UserWarning):
    """A call that carries has arguments of other shapes or dtypes from its second run on."""


class TransferError(AssertionError):
    """An array moved between host and device, or a program called Python, where that was not allowed.

    `direction` is "host_to_device", "device_to_host", "device_to_device" or "callback". `what` is shape and dtype, such
    as "float32[8,128]", or a callback's kind. `cause` says in words what did it, `location` is the user's `file:line`.
    """

    def __init__(self, message: str, *, direction: str = "", what: str = "", cause: str = "", location: str = ""):
        super().__init__(message)
        self.direction = direction
        self.what = what
        self.cause = cause
        self.location = location
