"""Where attributes end, whatever brackets and quotes their values have, and what quoted texts hold."""

import pytest
from support.compiled_texts import one_line


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("literal", "s32[2]{0} {1, 2}"),
        ("literal", "( s32[4]{0} {4, 128, 128, 3}, pred[4]{0} {1, 0, 0, 0} )"),
        ("replica_groups", "[2,4]<=[4,2]T(1,0)"),
        ("sharding", "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"),
        ("domain", '{kind="sharding", entry={maximal device=0}, exit={maximal device=1}}'),
        ("output_to_operand_aliasing", "{{0,0,1,0}: (0, {1,0}), {1}: (0, {})}"),
        ("frontend_attributes", '{composite.attributes={n = 1 : i32, t = dense<1> : tensor<i32>},name="a\\"}"}'),
        ("window", "{size=1x1x7x1 stride=1x4x1x1 pad=0_0x0_0x3_3x0_0}"),
        ("control-predecessors", "{%a, %b}"),
        ("async_execution_thread", '"parallel, thread"'),
    ],
)
def test_the_text_of_an_attribute(key, value):
    found = one_line(f"%x = f32[2]{{0}} custom-call(%a), first=1, {key}={value}, last={{}}")
    assert found.attributes == {"first": "1", key: value, "last": "{}"}


@pytest.mark.parametrize(
    ("config", "cycles"),
    [
        ('{"window_config":{"estimated_cycles":"1826","x":["{"]},"y":"}"}', 1826),
        ('{"estimated_cycles":"-1"}', -1),
        ('{"estimated_cycles": 7}', 7),
        ('{"debug":"\\"estimated_cycles\\":\\"9\\""}', None),
        ('{"debug":"\\nStrategyRing{colors:1 cores:{2}"}', None),
        ("{index = 0 : ui64}", None),
        ('{key: "value"}', None),
        ('"foo\\" bar, {"', None),
        ("{}", None),
    ],
)
def test_estimated_cycles(config, cycles):
    found = one_line(f"%x = f32[] add(%a, %b), backend_config={config}, control-predecessors={{%c}}")
    assert found.estimated_cycles == cycles
    assert found.attributes == {"control-predecessors": "{%c}"}
