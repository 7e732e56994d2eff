"""HLO texts of every form that the grammar allows, each with the module that is to be read from it."""

import json
import re
import string

from hypothesis import strategies as st

from perfsuite.measure.hlo.hlo_module import Computation, Frame, Instruction, Module, Shape

NAMES = st.text(string.ascii_letters + string.digits + "_.-", min_size=1, max_size=8).map(lambda rest: "n" + rest)
ANYTHING = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('{}[]()"\\,=% \n\t'), max_size=12)
SHAPES = st.builds(
    Shape,
    st.sampled_from(["f32", "bf16", "pred", "s4", "u32", "f8e4m3fn", "c64"]),
    st.lists(st.integers(0, 2**40), max_size=3).map(tuple),
)
TREES = st.recursive(SHAPES, lambda inner: st.lists(inner, max_size=7), max_leaves=8)
JSON = st.recursive(
    st.none() | st.integers() | ANYTHING, lambda inner: st.lists(inner) | st.dictionaries(ANYTHING, inner), max_leaves=8
)
OPCODES = st.sampled_from(["add", "fusion", "custom-call", "while", "get-tuple-element", "all-reduce-start", "send"])
CALLS = ["calls", "to_apply", "body", "condition", "branch_computations", "called_computations"]


def quoted(text):
    escapes = {ord('"'): '\\"', ord("\\"): "\\\\", ord("\n"): "\\n", ord("\t"): "\\t", ord("\r"): "\\r"}
    shown = text.translate(escapes)
    return '"' + "".join(c if " " <= c <= "~" else "".join(f"\\{byte:03o}" for byte in c.encode()) for c in shown) + '"'


VALUES = st.recursive(
    st.from_regex(r"[A-Za-z0-9_.<>:-]{1,6}", fullmatch=True) | ANYTHING.map(quoted),
    lambda inner: st.builds(
        lambda parts, brackets, comma: brackets[0] + comma.join(parts) + brackets[1],
        st.lists(inner, max_size=4),
        st.sampled_from(["{}", "[]", "()"]),
        st.sampled_from([", ", ",", "=", " ", ": "]),
    ),
    max_leaves=8,
)


def leaves(tree):
    return [tree] if isinstance(tree, Shape) else [leaf for inner in tree for leaf in leaves(inner)]


def shape_text(tree, draw):
    if isinstance(tree, Shape):
        layout = draw(st.sampled_from(["", "{:T(128)}", "{1,0:T(8,128)(2,1)S(1)}", "{0}"]))
        return f"{tree.dtype}[{','.join(draw(st.sampled_from(['', '<='])) + str(size) for size in tree.dims)}]{layout}"
    return "(" + listed([shape_text(inner, draw) for inner in tree]) + ")"


def listed(parts):
    return ", ".join(f"/*index={at}*/{part}" if at and at % 5 == 0 else part for at, part in enumerate(parts))


@st.composite
def frame_tables(draw):
    """The tables' text, and the stack of each frame's number; the text has the parents as they are, or one too high."""
    texts = [draw(st.lists(ANYTHING.filter(lambda text: "\n" not in text), min_size=1, max_size=3)) for _ in range(2)]
    count = draw(st.integers(0, 5))
    places = [
        [
            draw(st.sampled_from(range(len(texts[0])))),
            draw(st.sampled_from(range(len(texts[1])))),
            draw(st.integers(0, 9999)),
        ]
        for _ in range(count)
    ]
    shift = draw(st.sampled_from([0, 1]))
    stacks = {0: ()}
    rows = []
    for number, (file, function, line) in enumerate(places, 1):
        parent = draw(st.integers(0, number - 1))
        rows.append(f"{number} {{file_location_id={number} parent_frame_id={parent + shift}}}")
        stacks[number] = (Frame(texts[0][file], line, texts[1][function]), *stacks[parent])
    located = [
        f"{at} {{file_name_id={a + 1} function_name_id={b + 1} line={line} column=3}}"
        for at, (a, b, line) in enumerate(places, 1)
    ]
    tables = {
        "FileNames": [f"{at} {quoted(text)}" for at, text in enumerate(texts[0], 1)],
        "FunctionNames": [f"{at} {quoted(text)}" for at, text in enumerate(texts[1], 1)],
        "FileLocations": located,
        "StackFrames": rows,
    }
    return "".join("\n".join(["", name, *lines, ""]) for name, lines in tables.items()), stacks


@st.composite
def written_instructions(draw, name, known, computations, stacks, is_root):
    """A line, and what is to be read from it."""
    tree = draw(TREES)
    opcode = draw(OPCODES | st.sampled_from(["parameter", "constant"]))
    operands, calls, parameter, kind, target, transfer = (), (), None, None, None, False
    if opcode == "parameter":
        parameter = draw(st.integers(0, 99))
        inside = str(parameter)
    elif opcode == "constant":
        inside = draw(VALUES.filter(lambda text: text[0] not in "<>:"))
    else:
        operands = tuple(draw(st.lists(st.sampled_from(known), max_size=7))) if known else ()
        typed = draw(st.booleans())
        inside = listed(
            [(shape_text(draw(TREES), draw) + " " if typed else "") + f"%{operand}" for operand in operands]
        )
    parts = []
    if opcode == "fusion":
        kind = draw(st.sampled_from(["kLoop", "kOutput", "kInput", "kCustom"]))
        parts.append(f"kind={kind}")
    if opcode == "custom-call":
        target = draw(ANYTHING)
        parts.append(f"custom_call_target={quoted(target)}")
    if opcode == "send":
        transfer = draw(st.booleans())
        parts.append(f"is_host_transfer={'true' if transfer else 'false'}")
    for key in draw(st.lists(st.sampled_from(CALLS), unique=True, max_size=2)) if computations else []:
        called = draw(st.lists(st.sampled_from(computations), min_size=1, max_size=2))
        shown = ", ".join(f"%{one}" for one in called)
        parts.append(f"{key}={{{shown}}}" if len(called) > 1 or key.endswith("computations") else f"{key}={shown}")
        calls += tuple(called)
    attributes = draw(st.dictionaries(NAMES, VALUES, max_size=3))
    parts += [f"{key}={value}" for key, value in attributes.items()]
    op_name, frame = "", 0
    if draw(st.booleans()):
        op_name, frame = draw(ANYTHING), draw(st.sampled_from(sorted(stacks)))
        parts.append(
            f"metadata={{op_type={quoted(draw(ANYTHING))} op_name={quoted(op_name)}"
            + (f" stack_frame_id={frame}" if frame else "")
            + "}"
        )
    cycles, trips, estimate = None, None, None
    if draw(st.booleans()):
        config = {"before": draw(JSON), "after": draw(JSON)}
        if draw(st.booleans()):
            cycles = draw(st.integers(-1, 10**9))
            config = {
                "before": config["before"],
                "window_config": {"estimated_cycles": str(cycles)},
                "after": config["after"],
            }
        if draw(st.booleans()):
            trips = draw(st.integers(0, 10**9))
            config["known_trip_count"] = {"n": str(trips)}
        if draw(st.booleans()):
            estimate = {key: draw(st.integers(0, 10**15)) for key in ("flops", "transcendentals", "bytes_accessed")}
            shown = {key: str(value) for key, value in estimate.items()}
            config["custom_call_config"] = {"cost_estimate": {**shown, "remote_bytes_transferred": "0"}}
        parts.append("backend_config=" + json.dumps(config, separators=(",", ":")))
    line = f"  {'ROOT ' if is_root else ''}%{name} = {shape_text(tree, draw)} {opcode}({inside}){''.join(', ' + part for part in parts)}"
    literal = int(inside) if opcode == "constant" and re.fullmatch(r"-?[0-9]{1,20}", inside, re.ASCII) else None
    expected = Instruction(
        name, opcode, tuple(leaves(tree)), operands, calls, op_name, stacks[frame], kind, target, transfer, cycles, parameter, is_root, attributes,
        literal, trips, estimate,
    )  # fmt: skip
    return line, expected


@st.composite
def written_modules(draw):
    """The text of a module, and what is to be read from it."""
    tables, stacks = draw(frame_tables())
    names = draw(st.lists(NAMES, unique=True, min_size=1, max_size=3))
    texts, computations = [], {}
    for name in names:
        members = draw(st.lists(NAMES, unique=True, min_size=1, max_size=4))
        root = draw(st.sampled_from(members))
        written = [
            draw(written_instructions(member, members[:at], list(computations), stacks, member == root))
            for at, member in enumerate(members)
        ]
        entry = "ENTRY " if name == names[-1] else ""
        signature = f"(x: {shape_text(draw(TREES), draw)}) -> {shape_text(draw(TREES), draw)} "
        texts.append(f"{entry}%{name} {signature}{{\n" + "".join(line + "\n" for line, _ in written) + "}\n")
        computations[name] = Computation(name, tuple(expected for _, expected in written))
    indices = st.lists(st.integers(0, 20), max_size=2).map(tuple)
    aliases = draw(
        st.lists(
            st.tuples(indices, st.integers(0, 99), indices, st.sampled_from(["may", "must"])),
            max_size=3,
        )
    )
    donors = draw(st.lists(st.integers(0, 99), max_size=3))
    partitions = draw(st.integers(1, 512))
    shown = ", ".join(
        f"{{{','.join(map(str, output))}}}: ({parameter}, {{{','.join(map(str, index))}}}, {kind}-alias)"
        for output, parameter, index, kind in aliases
    )
    header = f"HloModule {names[0]}, is_scheduled=true"
    header += f", input_output_alias={{ {shown} }}" if aliases else ""
    header += f", buffer_donor={{ {', '.join(f'({one}, {{}})' for one in donors)} }}" if donors else ""
    header += f", note={draw(VALUES)}, num_partitions={partitions}\n"
    reused = frozenset(index[0] if index else parameter for _, parameter, index, _ in aliases)
    text = header + tables + "\n" + "\n".join(texts)
    return text, Module(names[0], computations, names[-1], reused)
