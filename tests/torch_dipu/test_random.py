"""Random numbers: seeds, states, generators, and a host generator that is left alone."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tests.torch_dipu.interpreter import output_of

DRAWS: dict[str, Callable[[], Tensor]] = {
    "rand": lambda: torch.rand(8, device="dipu"),
    "randn": lambda: torch.randn(8, device="dipu"),
    "randint": lambda: torch.randint(0, 100, (8,), device="dipu"),
    "randperm": lambda: torch.randperm(16, device="dipu"),
    "normal_": lambda: torch.empty(8, device="dipu").normal_(),
    "uniform_": lambda: torch.empty(8, device="dipu").uniform_(),
    "exponential_": lambda: torch.empty(8, device="dipu").exponential_(),
    "bernoulli": lambda: torch.bernoulli(torch.full((32,), 0.5, device="dipu")),
    "multinomial": lambda: torch.multinomial(torch.ones(16, device="dipu"), 8),
    "dropout": lambda: torch.dropout(torch.ones(32, device="dipu"), 0.5, True),
    "rand_like": lambda: torch.rand_like(torch.ones(8, device="dipu")),
    "poisson": lambda: torch.poisson(torch.full((8,), 4.0, device="dipu")),
    "rrelu": lambda: torch.rrelu(-torch.ones(8, device="dipu"), training=True),
    "dirichlet": lambda: torch._sample_dirichlet(torch.ones(2, 3, device="dipu")),
    "xavier": lambda: torch.nn.init.xavier_uniform_(torch.empty(3, 3, device="dipu")),
    "attention dropout": lambda: torch.nn.functional.scaled_dot_product_attention(
        *torch.ones(3, 1, 4, 4, device="dipu").unbind(), dropout_p=0.5
    ),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_seed_repeats_the_draw_and_the_next_one_differs(name: str) -> None:
    torch.manual_seed(11)
    first, second = DRAWS[name]().tolist(), DRAWS[name]().tolist()
    torch.manual_seed(11)
    assert DRAWS[name]().tolist() == first
    assert second != first


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_on_the_device_does_not_consume_the_host_generator(name: str) -> None:
    before = torch.get_rng_state()
    DRAWS[name]()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_on_the_host_does_not_consume_the_device_generator(name: str) -> None:
    before = torch.dipu.get_rng_state()
    torch.rand(8)
    assert torch.equal(torch.dipu.get_rng_state(), before)
    DRAWS[name]()
    assert not torch.equal(torch.dipu.get_rng_state(), before)


def test_manual_seed_seeds_the_current_device_only() -> None:
    other = torch.dipu.get_rng_state(1)
    torch.dipu.manual_seed(5)
    assert torch.dipu.initial_seed() == 5
    assert torch.equal(torch.dipu.get_rng_state(1), other)


def test_manual_seed_all_seeds_every_device() -> None:
    torch.dipu.manual_seed_all(6)
    first = torch.rand(3, device="dipu:0").tolist()
    torch.dipu.manual_seed_all(6)
    assert torch.rand(3, device="dipu:1").tolist() == first
    assert torch.rand(3, device="dipu:0").tolist() == first


def test_seed_takes_a_fresh_seed() -> None:
    torch.dipu.manual_seed(5)
    torch.dipu.seed()
    assert torch.dipu.initial_seed() != 5
    torch.dipu.seed_all()


def test_a_state_is_saved_and_restored() -> None:
    state = torch.dipu.get_rng_state()
    first = torch.rand(3, device="dipu").tolist()
    torch.dipu.set_rng_state(state)
    assert torch.rand(3, device="dipu").tolist() == first
    assert (state.dtype, state.device.type) == (torch.uint8, "cpu")


def test_all_states_are_saved_and_restored() -> None:
    states = torch.dipu.get_rng_state_all()
    assert len(states) == torch.dipu.device_count()
    first = [torch.rand(2, device=f"dipu:{i}").tolist() for i in range(2)]
    torch.dipu.set_rng_state_all(states)
    assert [torch.rand(2, device=f"dipu:{i}").tolist() for i in range(2)] == first


def test_a_generator_of_its_own() -> None:
    generator = torch.Generator(device="dipu")
    generator.manual_seed(9)
    default = torch.dipu.get_rng_state()
    first = torch.rand(3, device="dipu", generator=generator).tolist()
    assert torch.equal(torch.dipu.get_rng_state(), default)
    generator.manual_seed(9)
    assert torch.rand(3, device="dipu", generator=generator).tolist() == first
    assert generator.device == torch.device("dipu", 0)
    assert generator.initial_seed() == 9


def test_a_generators_state_is_saved_and_restored() -> None:
    generator = torch.Generator(device="dipu:1").manual_seed(2)
    state = generator.get_state()
    copy = generator.clone_state()
    first = torch.randn(5, device="dipu:1", generator=generator).tolist()
    generator.set_state(state)
    assert torch.randn(5, device="dipu:1", generator=generator).tolist() == first
    assert torch.randn(5, device="dipu:1", generator=copy).tolist() == first


def test_a_host_generator_is_refused() -> None:
    with pytest.raises(RuntimeError, match="Expected a 'dipu' device type for generator"):
        torch.rand(2, device="dipu", generator=torch.Generator())


def test_fork_rng_leaves_no_trace() -> None:
    before = torch.dipu.get_rng_state()
    with torch.random.fork_rng(devices=[0, 1], device_type="dipu"):
        torch.manual_seed(99)
        torch.rand(4, device="dipu")
    assert torch.equal(torch.dipu.get_rng_state(), before)


def test_dropout_scales_what_it_keeps() -> None:
    kept = torch.dropout(torch.ones(1000, device="dipu"), 0.25, True).unique().tolist()
    assert kept == pytest.approx([0.0, 4 / 3])


def test_normal_numbers_have_the_moments_of_a_normal() -> None:
    values = torch.randn(20000, device="dipu")
    assert values.mean().item() == pytest.approx(0, abs=0.03)
    assert values.std().item() == pytest.approx(1, abs=0.03)


# The state: a seed and an offset, as CUDA's.


def test_a_state_is_a_seed_and_an_offset() -> None:
    torch.dipu.manual_seed(7)
    torch.rand(3, device="dipu")
    assert torch.dipu.get_rng_state().view(torch.int64).tolist() == [7, 4]
    assert torch.dipu.default_generators[0].get_offset() == 4


def test_an_offset_is_a_place_in_the_stream() -> None:
    generator = torch.dipu.default_generators[0]
    torch.dipu.manual_seed(7)
    first, second, third = (torch.rand(3, device="dipu").tolist() for _ in range(3))
    generator.set_offset(4)
    assert torch.rand(3, device="dipu").tolist() == second
    assert torch.rand(3, device="dipu").tolist() == third
    generator.set_offset(400)
    assert torch.rand(3, device="dipu").tolist() not in (first, second, third)


def test_an_offset_between_calls_is_refused() -> None:
    generator = torch.Generator(device="dipu")
    with pytest.raises(RuntimeError, match="must be a multiple of 4; found 6"):
        generator.set_offset(6)
    with pytest.raises(RuntimeError, match="must be a multiple of 4; found 1"):
        generator.set_state(torch.tensor([3, 1]).view(torch.uint8))
    assert generator.get_offset() == 0


def test_a_state_of_another_size_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"has 16 bytes \(seed and offset\); found 3"):
        torch.dipu.set_rng_state(torch.zeros(3, dtype=torch.uint8))


def test_a_state_of_a_host_engine_is_read_as_a_seed() -> None:
    """Checkpoints of an older torch_dipu hold such states."""
    source = """
import torch, torch_dipu, warnings
state = torch.Generator().manual_seed(3).get_state()
drawn = []
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    for _ in range(2):
        torch.dipu.set_rng_state(state)
        drawn.append(torch.rand(3, device="dipu").tolist())
print(drawn[0] == drawn[1], "older torch_dipu" in str(seen[0].message))
"""
    assert output_of(source) == "True True"


def test_a_call_that_draws_nothing_leaves_the_generator_as_it_was() -> None:
    before = torch.dipu.get_rng_state()
    torch.empty(0, device="dipu").normal_()
    x = torch.ones(1, 1, 4, 4, device="dipu")
    torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.0)
    assert torch.equal(torch.dipu.get_rng_state(), before)


def test_the_cpu_can_draw_what_the_device_draws_next() -> None:
    torch.manual_seed(7)
    torch.rand(1, device="dipu")
    host = torch.Generator()
    host.set_state(torch.dipu.host_rng_state())
    expected = torch.randn(20, generator=host)
    assert torch.equal(torch.randn(20, device="dipu").cpu(), expected)


def test_a_generator_is_pickled_with_its_place() -> None:
    generator = torch.Generator(device="dipu").manual_seed(9)
    torch.rand(3, device="dipu", generator=generator)
    copy = pickle.loads(pickle.dumps(generator))
    assert torch.equal(copy.get_state(), generator.get_state())


def test_a_checkpointed_dropout_is_repeated() -> None:
    x = torch.ones(64, device="dipu", requires_grad=True)
    kept: list[Tensor] = []

    def block(value: Tensor) -> Tensor:
        dropped = torch.dropout(value, 0.5, True)
        kept.append(dropped.detach())
        return dropped.square()

    checkpoint(block, x, use_reentrant=False).sum().backward()
    assert torch.equal(kept[0], kept[1])
    assert torch.equal(x.grad, 2 * kept[0].square())
