"""What perfsuite knows about the internals of other libraries: the only room that names something private of one.

`names` is how a name is declared, `capabilities` is what needs which of them. Each other module has the names of one
capability. No module imports anything private when it is imported.
"""
