"""Manifests of warming jobs: what they mean, and where their mistakes are."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelfarm.client.warming.cases import MAX_CASES, cases_of
from kernelfarm.client.warming.manifest import parse_manifest, read_manifest
from kernelfarm.errors import CallerError
from kernelfarm.ir.product_choice import ProductChoice
from tests.support.source_code import ROOT

WHOLE = """
format: 1
targets: ["cpu:x86-64-v3", "cuda:sm_90a"]
options: {deterministic: true}
models:
  - name: encoder
    entry: my_models:encoder
    tag: encoder@3
    sizes:
      batch: {min: 1, max: 64}
      tokens: [128, 512]
    inputs: [[batch, tokens], ~]
    dtypes: [f32, bf16]
  - name: ranker
    file: ranker.pt2
    targets: ["cpu:x86-64-v4"]
    options: {fallback_random: true}
"""


def test_a_model_has_a_case_for_each_listed_size_and_element_type() -> None:
    manifest = parse_manifest(WHOLE, "m.yaml")
    assert [case.title for case in cases_of(manifest)] == [
        "encoder f32 batch=1..64 tokens=128",
        "encoder f32 batch=1..64 tokens=512",
        "encoder bf16 batch=1..64 tokens=128",
        "encoder bf16 batch=1..64 tokens=512",
        "ranker",
    ]


def test_a_models_own_targets_and_options_stand_before_those_of_the_manifest() -> None:
    manifest = parse_manifest(WHOLE, "m.yaml")
    encoder, ranker = manifest.models
    assert manifest.targets_of(encoder) == ("cpu:x86-64-v3", "cuda:sm_90a")
    assert manifest.targets_of(ranker) == ("cpu:x86-64-v4",)
    assert manifest.options_of(encoder).deterministic
    assert manifest.options_of(ranker).fallback_random
    assert not manifest.options_of(ranker).deterministic


TUNED = """
format: 1
targets: ["cpu:x86-64-v3"]
options: {products: tuned}
devices: {"cpu:x86-64-v3": ["a processor, 2 threads, torch 2.13.0"]}
models:
  - name: encoder
    entry: my_models:encoder
  - name: ranker
    file: ranker.pt2
    options: {products: own}
"""


def test_the_fleet_chooses_for_models_that_are_tuned_on_the_stated_devices() -> None:
    manifest = parse_manifest(TUNED, "m.yaml")
    tuned, own = (manifest.options_of(model) for model in manifest.models)
    assert (tuned.is_tuned, tuned.product_choice) == (True, ProductChoice.AUTO)
    assert (own.is_tuned, own.product_choice) == (False, ProductChoice.OWN)
    assert manifest.devices == {"cpu:x86-64-v3": ["a processor, 2 threads, torch 2.13.0"]}


@pytest.mark.parametrize(
    ("changed", "to", "said"),
    [
        ("devices:", "# devices:", "products 'tuned' of encoder without a device of its targets"),
        ('{"cpu:x86-64-v3": [', '{"cuda:sm_90a": [', "devices of cuda:sm_90a, which no model is"),
        ('["a processor, 2 threads, torch 2.13.0"]', "[]", "List should have at least 1 item"),
        ("products: tuned", "products: fast", "m.yaml:4: options.products: Input should be"),
    ],
)
def test_a_mistake_about_devices_says_what_is_expected(changed: str, to: str, said: str) -> None:
    assert changed in TUNED
    with pytest.raises(CallerError) as caught:
        parse_manifest(TUNED.replace(changed, to), "m.yaml")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "to", "said"),
    [
        ("my_models:encoder", "my_models.encoder", "m.yaml:7: models.0.entry: String should match"),
        ("max: 64", "max: 1", "m.yaml:10: models.0.sizes.batch.max: Input should be greater"),
        (
            "min: 1, max: 64",
            "min: 9, max: 3",
            "m.yaml:10: models.0.sizes.batch: min 9 is not below",
        ),
        ("[128, 512]", "x", "m.yaml:11: models.0.sizes.tokens: Input should be a valid list"),
        ("[128, 512]", "[true]", "m.yaml:11: models.0.sizes.tokens.0: Input should be a valid int"),
        ("[batch, tokens]", "[batch, t]", "m.yaml:6: models.0: inputs name the sizes t"),
        ("[batch, tokens]", "[batch]", "m.yaml:6: models.0: no input has the sizes tokens"),
        ("dtypes:", "dtyps:", "m.yaml:13: models.0.dtyps: Extra inputs are not permitted"),
        ("[f32, bf16]", "[f32, f32]", "m.yaml:6: models.0: an element type is there twice"),
        ("[f32, bf16]", "[i32]", "m.yaml:13: models.0.dtypes.0: Input should be 'f64', 'f32'"),
        ("file: ranker.pt2", "arguments: {}", "m.yaml:14: models.1: expected either `entry`"),
        ("file: ranker.pt2", "file: a.pt2\n    dtypes: [f32]", "leave out dtypes"),
        (
            "file: ranker.pt2",
            "file: a.pt2\n    train: true",
            "m.yaml:14: models.1: a .pt2 file has no",
        ),
        (
            "tag: encoder@3",
            "train: true\n    grad: no_grad",
            "m.yaml:6: models.0: `train` runs with",
        ),
        ("cuda:sm_90a", "cuda:sm_1", "m.yaml:3: targets: unknown target 'cuda:sm_1'"),
        (
            "cuda:sm_90a",
            "cpu:x86-64-v3",
            "m.yaml:3: targets: target 'cpu:x86-64-v3' is there twice",
        ),
        ("cpu:x86-64-v4", "cpu:z80", "m.yaml:16: models.1.targets: unknown target"),
        ("name: ranker", "name: encoder", "several models have the name encoder"),
        ("encoder@3", "a b", "m.yaml:6: models.0: model 'a b'; expected id@revision"),
        ("format: 1", "format: 2", "m.yaml:2: format: Input should be 1"),
        ("format: 1\n", "", "format: Field required"),
        ("format: 1", "format: 1\nformat: 1", "m.yaml:3: key 'format' is there twice"),
        ("options: {", "options: &o {", ""),
        ("tag: encoder@3", "tag: *o", "an alias (*name); write the value out"),
        ("encoder@3", "2020-01-01", "m.yaml:8: a value of type 'timestamp'"),
        ("encoder@3", "!!python/object:os.x {}", "m.yaml:8: a value of type"),
        ("options: {", "options: [", "m.yaml:4: not YAML: "),
    ],
)
def test_a_mistake_is_reported_with_its_line(changed: str, to: str, said: str) -> None:
    assert changed in WHOLE
    text = WHOLE.replace(changed, to, 1)
    if not said:
        parse_manifest(text, "m.yaml")  # an anchor alone does no harm
        return
    with pytest.raises(CallerError) as refused:
        parse_manifest(text, "m.yaml")
    assert said in str(refused.value)


def test_all_mistakes_are_reported_at_once() -> None:
    text = WHOLE.replace("dtypes", "dtyps").replace("format: 1", "format: 7")
    with pytest.raises(CallerError) as refused:
        parse_manifest(text, "m.yaml")
    assert len(str(refused.value).splitlines()) == 2


def test_a_manifest_with_too_many_cases_is_refused() -> None:
    sizes = "\n".join(f"      s{n}: [{', '.join(map(str, range(1, 33)))}]" for n in range(3))
    shape = ", ".join(f"s{n}" for n in range(3))
    text = (
        'format: 1\ntargets: ["cpu:x86-64-v3"]\nmodels:\n  - name: a\n    entry: a:b\n'
        f"    sizes:\n{sizes}\n    inputs: [[{shape}]]\n"
    )
    with pytest.raises(CallerError, match=f"more than {MAX_CASES} combinations"):
        cases_of(parse_manifest(text, "m.yaml"))


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(CallerError, match="levels of nesting"):
        parse_manifest("a: " + "[" * 200 + "]" * 200, "m.yaml")


def test_a_large_or_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="cannot read the manifest"):
        read_manifest(tmp_path / "none.yaml")
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (1 << 20) + b"\n")
    with pytest.raises(CallerError, match="is larger than 1048576 bytes"):
        read_manifest(large)


def test_the_example_is_a_manifest() -> None:
    manifest = read_manifest(ROOT / "examples" / "warming.yaml")
    assert {target.partition(":")[0] for target in manifest.targets} == {
        "cpu",
        "cuda",
        "rocm",
        "ascend",
    }
