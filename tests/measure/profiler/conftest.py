"""Traces made by hand: the files are read by the same `jax.profiler.ProfileData` as real ones."""

import itertools
import json

import jax
import pytest


@pytest.fixture
def write_trace(tmp_path):
    """Write an XPlane file: {plane: {line: [(event, start_us, us, {stat: value})]}}."""
    numbers = itertools.count()

    def write(planes):
        text = []
        for plane, lines in planes.items():
            every = [event for events in lines.values() for event in events]
            names = {name: n for n, name in enumerate(dict.fromkeys(event[0] for event in every), 1)}
            stats = {name: n for n, name in enumerate(dict.fromkeys(stat for event in every for stat in event[3]), 1)}
            text.append(f"planes {{ name: {json.dumps(plane)}")
            for field, ids in (("event_metadata", names), ("stat_metadata", stats)):
                text += [
                    f"{field} {{ key: {n} value {{ id: {n} name: {json.dumps(name)} }} }}" for name, n in ids.items()
                ]
            for n, (line, events) in enumerate(lines.items()):
                text.append(f"lines {{ id: {n} name: {json.dumps(line)} timestamp_ns: 1000")
                for name, start, us, values in events:
                    text.append(
                        f"events {{ metadata_id: {names[name]} offset_ps: {int(start * 1e6)} duration_ps: {int(us * 1e6)}"
                    )
                    for stat, value in values.items():
                        kind = "int64_value" if isinstance(value, int) else "str_value"
                        text.append(f"stats {{ metadata_id: {stats[stat]} {kind}: {json.dumps(value)} }}")
                    text.append("}")
                text.append("}")
            text.append("}")
        path = tmp_path / f"{next(numbers)}.xplane.pb"
        path.write_bytes(jax.profiler.ProfileData.text_proto_to_serialized_xspace("\n".join(text)))
        return path

    return write
