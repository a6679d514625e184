"""Convolutions of Winograd's algorithm as transforms and products of kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernelfarm.client.custom_operators.winograd import WINOGRAD as CONVOLUTION
from kernelfarm.client.custom_operators.winograd import transformed_weight
from kernelfarm.client.freezing.order_weights import order_of_tiles
from kernelfarm.dtypes import DType
from kernelfarm.ir.processor_products import find_processor_product
from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import optimize
from tests.support.compiled_kernels import run_targets
from tests.support.contraction_programs import WINOGRAD, run
from tests.support.goldens import assert_golden
from tests.support.in_process_compiler import Counts
from tests.support.optimizer_passes import before_and_after

AVX2 = "cpu:x86-64-v3-amd"
Layer = Callable[..., Tensor]


@pytest.mark.golden
def test_a_convolution_becomes_transforms_and_products() -> None:
    assert_golden(
        before_and_after("compute-winograd", WINOGRAD, AVX2),
        """\
-- before compute-winograd: graph
graph prims 1
%0: f32[1, 8, 5, 3]@[120, 1, 24, 8] = input "x"
%1: f32[16, 1, 8, 16]@[128, 128, 16, 1] = input "w"
%2: f32[9]@[1] = input "b"
%3: f32[1, 9, 5, 3]@[135, 1, 27, 9] = extern(%0, %1, %2; is_contraction=true, node=0, op="kernelfarm.winograd_convolution.default") from [0]
return %3: f32[1, 9, 5, 3]@[135, 1, 27, 9]
-- after: graph
graph prims 1
%0: f32[1, 8, 5, 3]@[120, 1, 24, 8] = input "x"
%1: f32[16, 1, 8, 16]@[128, 128, 16, 1] = input "w"
%2: f32[9]@[1] = input "b"
%7: f32[1, 5, 3, 8] = permute(%0; dims=[0, 2, 3, 1]) from [0]
%8: f32[1, 8, 6, 8] = pad(%7; high=[{0}, {2}, {2}, {0}], low=[{0}, {1}, {1}, {0}], value=0.0) from [0]
%9: f32[1, 3, 2, 8] = slice(%8; limits=[{1}, {5}, {3}, {8}], starts=[{0}, {0}, {0}, {0}], steps=[{1}, {2}, {2}, {1}]) from [0]
%10: f32[1, 3, 2, 8] = slice(%8; limits=[{1}, {5}, {4}, {8}], starts=[{0}, {0}, {1}, {0}], steps=[{1}, {2}, {2}, {1}]) from [0]
%11: f32[1, 3, 2, 8] = slice(%8; limits=[{1}, {5}, {5}, {8}], starts=[{0}, {0}, {2}, {0}], steps=[{1}, {2}, {2}, {1}]) from [0]
%12: f32[1, 3, 2, 8] = slice(%8; limits=[{1}, {5}, {6}, {8}], starts=[{0}, {0}, {3}, {0}], steps=[{1}, {2}, {2}, {1}]) from [0]
%13: f32[1, 3, 2, 8] = slice(%8; limits=[{1}, {6}, {3}, {8}], starts=[{0}, {1}, {0}, {0}], steps=[{1}, {2}, {2}, {1}]) from [0]
%14: f32[1, 3, 2, 8] = slice(%8; limits=[{1}, {6}, {4}, {8}], starts=[{0}, {1}, {1}, {0}], steps=[{1}, {2}, {2}, {1}]) from [0]
%15: f32[1, 3, 2, 8] = slice(%8; limits=[{1}, {6}, {5}, {8}], starts=[{0}, {1}, {2}, {0}], steps=[{1}, {2}, {2}, {1}]) from [0]
%16: f32[1, 3, 2, 8] = slice(%8; limits=[{1}, {6}, {6}, {8}], starts=[{0}, {1}, {3}, {0}], steps=[{1}, {2}, {2}, {1}]) from [0]
%17: f32[1, 3, 2, 8] = slice(%8; limits=[{1}, {7}, {3}, {8}], starts=[{0}, {2}, {0}, {0}], steps=[{1}, {2}, {2}, {1}]) from [0]
%18: f32[1, 3, 2, 8] = slice(%8; limits=[{1}, {7}, {4}, {8}], starts=[{0}, {2}, {1}, {0}], steps=[{1}, {2}, {2}, {1}]) from [0]
%19: f32[1, 3, 2, 8] = slice(%8; limits=[{1}, {7}, {5}, {8}], starts=[{0}, {2}, {2}, {0}], steps=[{1}, {2}, {2}, {1}]) from [0]
%20: f32[1, 3, 2, 8] = slice(%8; limits=[{1}, {7}, {6}, {8}], starts=[{0}, {2}, {3}, {0}], steps=[{1}, {2}, {2}, {1}]) from [0]
%21: f32[1, 3, 2, 8] = slice(%8; limits=[{1}, {8}, {3}, {8}], starts=[{0}, {3}, {0}, {0}], steps=[{1}, {2}, {2}, {1}]) from [0]
%22: f32[1, 3, 2, 8] = slice(%8; limits=[{1}, {8}, {4}, {8}], starts=[{0}, {3}, {1}, {0}], steps=[{1}, {2}, {2}, {1}]) from [0]
%23: f32[1, 3, 2, 8] = slice(%8; limits=[{1}, {8}, {5}, {8}], starts=[{0}, {3}, {2}, {0}], steps=[{1}, {2}, {2}, {1}]) from [0]
%24: f32[1, 3, 2, 8] = slice(%8; limits=[{1}, {8}, {6}, {8}], starts=[{0}, {3}, {3}, {0}], steps=[{1}, {2}, {2}, {1}]) from [0]
%25: f32[1, 3, 2, 8] = sub(%9, %11) from [0]
%26: f32[1, 3, 2, 8] = add(%10, %11) from [0]
%27: f32[1, 3, 2, 8] = sub(%11, %10) from [0]
%28: f32[1, 3, 2, 8] = sub(%10, %12) from [0]
%29: f32[1, 3, 2, 8] = sub(%13, %15) from [0]
%30: f32[1, 3, 2, 8] = add(%14, %15) from [0]
%31: f32[1, 3, 2, 8] = sub(%15, %14) from [0]
%32: f32[1, 3, 2, 8] = sub(%14, %16) from [0]
%33: f32[1, 3, 2, 8] = sub(%17, %19) from [0]
%34: f32[1, 3, 2, 8] = add(%18, %19) from [0]
%35: f32[1, 3, 2, 8] = sub(%19, %18) from [0]
%36: f32[1, 3, 2, 8] = sub(%18, %20) from [0]
%37: f32[1, 3, 2, 8] = sub(%21, %23) from [0]
%38: f32[1, 3, 2, 8] = add(%22, %23) from [0]
%39: f32[1, 3, 2, 8] = sub(%23, %22) from [0]
%40: f32[1, 3, 2, 8] = sub(%22, %24) from [0]
%41: f32[1, 3, 2, 8] = sub(%25, %33) from [0]
%42: f32[1, 3, 2, 8] = add(%29, %33) from [0]
%43: f32[1, 3, 2, 8] = sub(%33, %29) from [0]
%44: f32[1, 3, 2, 8] = sub(%29, %37) from [0]
%45: f32[1, 3, 2, 8] = sub(%26, %34) from [0]
%46: f32[1, 3, 2, 8] = add(%30, %34) from [0]
%47: f32[1, 3, 2, 8] = sub(%34, %30) from [0]
%48: f32[1, 3, 2, 8] = sub(%30, %38) from [0]
%49: f32[1, 3, 2, 8] = sub(%27, %35) from [0]
%50: f32[1, 3, 2, 8] = add(%31, %35) from [0]
%51: f32[1, 3, 2, 8] = sub(%35, %31) from [0]
%52: f32[1, 3, 2, 8] = sub(%31, %39) from [0]
%53: f32[1, 3, 2, 8] = sub(%28, %36) from [0]
%54: f32[1, 3, 2, 8] = add(%32, %36) from [0]
%55: f32[1, 3, 2, 8] = sub(%36, %32) from [0]
%56: f32[1, 3, 2, 8] = sub(%32, %40) from [0]
%57: f32[1, 1, 3, 2, 8] = reshape(%41; shape=[{1}, {1}, {3}, {2}, {8}]) from [0]
%58: f32[1, 1, 3, 2, 8] = reshape(%45; shape=[{1}, {1}, {3}, {2}, {8}]) from [0]
%59: f32[1, 1, 3, 2, 8] = reshape(%49; shape=[{1}, {1}, {3}, {2}, {8}]) from [0]
%60: f32[1, 1, 3, 2, 8] = reshape(%53; shape=[{1}, {1}, {3}, {2}, {8}]) from [0]
%61: f32[1, 1, 3, 2, 8] = reshape(%42; shape=[{1}, {1}, {3}, {2}, {8}]) from [0]
%62: f32[1, 1, 3, 2, 8] = reshape(%46; shape=[{1}, {1}, {3}, {2}, {8}]) from [0]
%63: f32[1, 1, 3, 2, 8] = reshape(%50; shape=[{1}, {1}, {3}, {2}, {8}]) from [0]
%64: f32[1, 1, 3, 2, 8] = reshape(%54; shape=[{1}, {1}, {3}, {2}, {8}]) from [0]
%65: f32[1, 1, 3, 2, 8] = reshape(%43; shape=[{1}, {1}, {3}, {2}, {8}]) from [0]
%66: f32[1, 1, 3, 2, 8] = reshape(%47; shape=[{1}, {1}, {3}, {2}, {8}]) from [0]
%67: f32[1, 1, 3, 2, 8] = reshape(%51; shape=[{1}, {1}, {3}, {2}, {8}]) from [0]
%68: f32[1, 1, 3, 2, 8] = reshape(%55; shape=[{1}, {1}, {3}, {2}, {8}]) from [0]
%69: f32[1, 1, 3, 2, 8] = reshape(%44; shape=[{1}, {1}, {3}, {2}, {8}]) from [0]
%70: f32[1, 1, 3, 2, 8] = reshape(%48; shape=[{1}, {1}, {3}, {2}, {8}]) from [0]
%71: f32[1, 1, 3, 2, 8] = reshape(%52; shape=[{1}, {1}, {3}, {2}, {8}]) from [0]
%72: f32[1, 1, 3, 2, 8] = reshape(%56; shape=[{1}, {1}, {3}, {2}, {8}]) from [0]
%4: f32[16, 1, 3, 2, 8] = cat(%57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72; dim=0) from [0]
%5: f32[16, 6, 8] = reshape(%4; shape=[{16}, {6}, {8}]) from [0]
%73: f32[16, 1, 16, 8] = permute(%1; dims=[0, 1, 3, 2]) from [0]
%74: f32[16, 16, 8] = reshape(%73; shape=[{16}, {16}, {8}]) from [0]
%75: f32[16, 9, 8] = slice(%74; limits=[{16}, {9}, {8}], starts=[{0}, {0}, {0}], steps=[{1}, {1}, {1}]) from [0]
%76: f32[16, 6, 9, 8] = broadcast_in_dim(%5; dims=[0, 1, 3], shape=[{16}, {6}, {9}, {8}]) from [0]
%77: f32[16, 6, 9, 8] = broadcast_in_dim(%75; dims=[0, 2, 3], shape=[{16}, {6}, {9}, {8}]) from [0]
%78: f32[16, 6, 9, 8] = mul(%76, %77) from [0]
%6: f32[16, 6, 9] = sum(%78; dims=[3]) from [0]
%79: f32[16, 1, 3, 2, 9] = reshape(%6; shape=[{16}, {1}, {3}, {2}, {9}]) from [0]
%80: f32[1, 1, 3, 2, 9] = slice(%79; limits=[{1}, {1}, {3}, {2}, {9}], starts=[{0}, {0}, {0}, {0}, {0}], steps=[{1}, {1}, {1}, {1}, {1}]) from [0]
%81: f32[1, 3, 2, 9] = reshape(%80; shape=[{1}, {3}, {2}, {9}]) from [0]
%82: f32[1, 1, 3, 2, 9] = slice(%79; limits=[{2}, {1}, {3}, {2}, {9}], starts=[{1}, {0}, {0}, {0}, {0}], steps=[{1}, {1}, {1}, {1}, {1}]) from [0]
%83: f32[1, 3, 2, 9] = reshape(%82; shape=[{1}, {3}, {2}, {9}]) from [0]
%84: f32[1, 1, 3, 2, 9] = slice(%79; limits=[{3}, {1}, {3}, {2}, {9}], starts=[{2}, {0}, {0}, {0}, {0}], steps=[{1}, {1}, {1}, {1}, {1}]) from [0]
%85: f32[1, 3, 2, 9] = reshape(%84; shape=[{1}, {3}, {2}, {9}]) from [0]
%86: f32[1, 1, 3, 2, 9] = slice(%79; limits=[{4}, {1}, {3}, {2}, {9}], starts=[{3}, {0}, {0}, {0}, {0}], steps=[{1}, {1}, {1}, {1}, {1}]) from [0]
%87: f32[1, 3, 2, 9] = reshape(%86; shape=[{1}, {3}, {2}, {9}]) from [0]
%88: f32[1, 1, 3, 2, 9] = slice(%79; limits=[{5}, {1}, {3}, {2}, {9}], starts=[{4}, {0}, {0}, {0}, {0}], steps=[{1}, {1}, {1}, {1}, {1}]) from [0]
%89: f32[1, 3, 2, 9] = reshape(%88; shape=[{1}, {3}, {2}, {9}]) from [0]
%90: f32[1, 1, 3, 2, 9] = slice(%79; limits=[{6}, {1}, {3}, {2}, {9}], starts=[{5}, {0}, {0}, {0}, {0}], steps=[{1}, {1}, {1}, {1}, {1}]) from [0]
%91: f32[1, 3, 2, 9] = reshape(%90; shape=[{1}, {3}, {2}, {9}]) from [0]
%92: f32[1, 1, 3, 2, 9] = slice(%79; limits=[{7}, {1}, {3}, {2}, {9}], starts=[{6}, {0}, {0}, {0}, {0}], steps=[{1}, {1}, {1}, {1}, {1}]) from [0]
%93: f32[1, 3, 2, 9] = reshape(%92; shape=[{1}, {3}, {2}, {9}]) from [0]
%94: f32[1, 1, 3, 2, 9] = slice(%79; limits=[{8}, {1}, {3}, {2}, {9}], starts=[{7}, {0}, {0}, {0}, {0}], steps=[{1}, {1}, {1}, {1}, {1}]) from [0]
%95: f32[1, 3, 2, 9] = reshape(%94; shape=[{1}, {3}, {2}, {9}]) from [0]
%96: f32[1, 1, 3, 2, 9] = slice(%79; limits=[{9}, {1}, {3}, {2}, {9}], starts=[{8}, {0}, {0}, {0}, {0}], steps=[{1}, {1}, {1}, {1}, {1}]) from [0]
%97: f32[1, 3, 2, 9] = reshape(%96; shape=[{1}, {3}, {2}, {9}]) from [0]
%98: f32[1, 1, 3, 2, 9] = slice(%79; limits=[{10}, {1}, {3}, {2}, {9}], starts=[{9}, {0}, {0}, {0}, {0}], steps=[{1}, {1}, {1}, {1}, {1}]) from [0]
%99: f32[1, 3, 2, 9] = reshape(%98; shape=[{1}, {3}, {2}, {9}]) from [0]
%100: f32[1, 1, 3, 2, 9] = slice(%79; limits=[{11}, {1}, {3}, {2}, {9}], starts=[{10}, {0}, {0}, {0}, {0}], steps=[{1}, {1}, {1}, {1}, {1}]) from [0]
%101: f32[1, 3, 2, 9] = reshape(%100; shape=[{1}, {3}, {2}, {9}]) from [0]
%102: f32[1, 1, 3, 2, 9] = slice(%79; limits=[{12}, {1}, {3}, {2}, {9}], starts=[{11}, {0}, {0}, {0}, {0}], steps=[{1}, {1}, {1}, {1}, {1}]) from [0]
%103: f32[1, 3, 2, 9] = reshape(%102; shape=[{1}, {3}, {2}, {9}]) from [0]
%104: f32[1, 1, 3, 2, 9] = slice(%79; limits=[{13}, {1}, {3}, {2}, {9}], starts=[{12}, {0}, {0}, {0}, {0}], steps=[{1}, {1}, {1}, {1}, {1}]) from [0]
%105: f32[1, 3, 2, 9] = reshape(%104; shape=[{1}, {3}, {2}, {9}]) from [0]
%106: f32[1, 1, 3, 2, 9] = slice(%79; limits=[{14}, {1}, {3}, {2}, {9}], starts=[{13}, {0}, {0}, {0}, {0}], steps=[{1}, {1}, {1}, {1}, {1}]) from [0]
%107: f32[1, 3, 2, 9] = reshape(%106; shape=[{1}, {3}, {2}, {9}]) from [0]
%108: f32[1, 1, 3, 2, 9] = slice(%79; limits=[{15}, {1}, {3}, {2}, {9}], starts=[{14}, {0}, {0}, {0}, {0}], steps=[{1}, {1}, {1}, {1}, {1}]) from [0]
%109: f32[1, 3, 2, 9] = reshape(%108; shape=[{1}, {3}, {2}, {9}]) from [0]
%110: f32[1, 1, 3, 2, 9] = slice(%79; limits=[{16}, {1}, {3}, {2}, {9}], starts=[{15}, {0}, {0}, {0}, {0}], steps=[{1}, {1}, {1}, {1}, {1}]) from [0]
%111: f32[1, 3, 2, 9] = reshape(%110; shape=[{1}, {3}, {2}, {9}]) from [0]
%112: f32[1, 3, 2, 9] = add(%81, %83) from [0]
%113: f32[1, 3, 2, 9] = add(%112, %85) from [0]
%114: f32[1, 3, 2, 9] = sub(%83, %85) from [0]
%115: f32[1, 3, 2, 9] = sub(%114, %87) from [0]
%116: f32[1, 3, 2, 9] = add(%89, %91) from [0]
%117: f32[1, 3, 2, 9] = add(%116, %93) from [0]
%118: f32[1, 3, 2, 9] = sub(%91, %93) from [0]
%119: f32[1, 3, 2, 9] = sub(%118, %95) from [0]
%120: f32[1, 3, 2, 9] = add(%97, %99) from [0]
%121: f32[1, 3, 2, 9] = add(%120, %101) from [0]
%122: f32[1, 3, 2, 9] = sub(%99, %101) from [0]
%123: f32[1, 3, 2, 9] = sub(%122, %103) from [0]
%124: f32[1, 3, 2, 9] = add(%105, %107) from [0]
%125: f32[1, 3, 2, 9] = add(%124, %109) from [0]
%126: f32[1, 3, 2, 9] = sub(%107, %109) from [0]
%127: f32[1, 3, 2, 9] = sub(%126, %111) from [0]
%128: f32[1, 3, 2, 9] = add(%113, %117) from [0]
%129: f32[1, 3, 2, 9] = add(%128, %121) from [0]
%130: f32[1, 3, 2, 9] = sub(%117, %121) from [0]
%131: f32[1, 3, 2, 9] = sub(%130, %125) from [0]
%132: f32[1, 3, 2, 9] = add(%115, %119) from [0]
%133: f32[1, 3, 2, 9] = add(%132, %123) from [0]
%134: f32[1, 3, 2, 9] = sub(%119, %123) from [0]
%135: f32[1, 3, 2, 9] = sub(%134, %127) from [0]
%136: f32[1, 3, 2, 1, 9] = reshape(%129; shape=[{1}, {3}, {2}, {1}, {9}]) from [0]
%137: f32[1, 3, 2, 1, 9] = reshape(%133; shape=[{1}, {3}, {2}, {1}, {9}]) from [0]
%138: f32[1, 3, 2, 2, 9] = cat(%136, %137; dim=3) from [0]
%139: f32[1, 3, 2, 1, 9] = reshape(%131; shape=[{1}, {3}, {2}, {1}, {9}]) from [0]
%140: f32[1, 3, 2, 1, 9] = reshape(%135; shape=[{1}, {3}, {2}, {1}, {9}]) from [0]
%141: f32[1, 3, 2, 2, 9] = cat(%139, %140; dim=3) from [0]
%142: f32[1, 3, 1, 2, 2, 9] = reshape(%138; shape=[{1}, {3}, {1}, {2}, {2}, {9}]) from [0]
%143: f32[1, 3, 1, 2, 2, 9] = reshape(%141; shape=[{1}, {3}, {1}, {2}, {2}, {9}]) from [0]
%144: f32[1, 3, 2, 2, 2, 9] = cat(%142, %143; dim=2) from [0]
%145: f32[1, 6, 4, 9] = reshape(%144; shape=[{1}, {6}, {4}, {9}]) from [0]
%146: f32[1, 5, 3, 9] = slice(%145; limits=[{1}, {5}, {3}, {9}], starts=[{0}, {0}, {0}, {0}], steps=[{1}, {1}, {1}, {1}]) from [0]
%147: f32[1, 9, 5, 3] = permute(%146; dims=[0, 3, 1, 2]) from [0]
%148: f32[1, 9, 5, 3] = broadcast_in_dim(%2; dims=[1], shape=[{1}, {9}, {5}, {3}]) from [0]
%3: f32[1, 9, 5, 3] = add(%147, %148) from [0]
return %3: f32[1, 9, 5, 3]@[135, 1, 27, 9]
""",
    )


def weights(target: str, weight: Tensor) -> Tensor:
    """The transformed weight in the order of a target's tiles."""
    order = order_of_tiles(weight.shape[0], DType.F32, target_facts(target))
    assert order is not None
    return transformed_weight(weight, order.width)


def operands(images: int, channels: int, results: int, *pixels: int) -> list[Tensor]:
    torch.manual_seed(channels)
    x = torch.randn(images, channels, *pixels).to(memory_format=torch.channels_last)
    weight = torch.randn(results, channels, 3, 3) / (9 * channels) ** 0.5
    return [x, weight, torch.randn(results)]


@pytest.mark.sweep
@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize(
    ("images", "channels", "results", "pixels"),
    [
        (1, 16, 16, (7, 7)),
        (2, 40, 17, (13, 9)),
        (1, 13, 30, (4, 5)),
        (3, 64, 80, (10, 10)),
        (1, 130, 64, (14, 6)),
        (1, 8, 8, (3, 3)),
    ],
)
def test_results_are_as_exact_as_eager_s(
    images: int, channels: int, results: int, pixels: tuple[int, int], padding: int, target: str
) -> None:
    """The error against float64 is at most 4 times that of the direct convolution."""
    x, weight, bias = operands(images, channels, results, *pixels)

    def layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.silu(CONVOLUTION(x, weight, bias, results, padding))

    counts = Counts()
    ours, _ = run(target_facts(target), counts, layer, x, weights(target, weight), bias)
    assert (counts.launches, counts.externs) == (3, [])

    def direct(*args: Tensor) -> Tensor:
        return functional.silu(functional.conv2d(*args, padding=padding))

    exact = direct(x.double(), weight.double(), bias.double())
    errors = [(y.double() - exact).abs().max().item() for y in (ours, direct(x, weight, bias))]
    assert errors[0] <= max(4 * errors[1], 1e-6)
    assert ours.is_contiguous(memory_format=torch.channels_last)


def test_products_are_in_tiles_and_read_panels() -> None:
    x, weight, bias = operands(1, 32, 48, 12, 12)

    def layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return CONVOLUTION(x, weight, bias, 48, 1)

    facts = target_facts(AVX2)
    _, graph = run(facts, Counts(), layer, x, weights(AVX2, weight), bias)
    found = [find_processor_product(kernel) for kernel in optimize(graph, facts).program.kernels]
    orders = [product.right.order for product in found if product is not None]
    assert [None if order is None else order.width for order in orders] == [16]


@pytest.mark.parametrize("has_bias", [False, True])
def test_what_follows_and_what_precedes_are_fused(*, has_bias: bool) -> None:
    """Three kernels for each convolution: a residual and ReLU are parts of the last one."""
    x, weight, bias = operands(1, 32, 32, 9, 9)

    def layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        shift = bias if has_bias else None
        first = functional.relu(CONVOLUTION(x, weight, shift, 32, 1))
        return functional.relu(CONVOLUTION(first, weight, shift, 32, 1) + x)

    counts, given = Counts(), weights(AVX2, weight)
    ours, _ = run(target_facts(AVX2), counts, layer, x, given, bias)
    assert (counts.launches, counts.externs) == (6, [])
    torch.testing.assert_close(ours, layer(x, given, bias), rtol=1e-5, atol=1e-5)


def test_two_convolutions_of_one_image_share_its_transform() -> None:
    x, weight, _ = operands(1, 32, 32, 9, 9)
    given = weights(AVX2, weight)

    def layers(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return CONVOLUTION(x, first, None, 32, 1) * CONVOLUTION(x, second, None, 32, 1).sigmoid()

    counts = Counts()
    ours, _ = run(target_facts(AVX2), counts, layers, x, given, given + 1)
    assert (counts.launches, counts.externs) == (4, [])
    torch.testing.assert_close(ours, layers(x, given, given + 1), rtol=1e-4, atol=1e-4)


def test_operands_that_fit_no_tiles_run_by_the_framework() -> None:
    x, weight, bias = operands(1, 16, 16, 7, 7)

    def layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return CONVOLUTION(x, weight, bias, 16, 1)

    counts = Counts()
    ours, _ = run(target_facts(AVX2), counts, layer, x, transformed_weight(weight, 4), bias)
    assert counts.externs == ["kernelfarm.winograd_convolution.default"]
    expected = functional.conv2d(x, weight, bias, padding=1)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
