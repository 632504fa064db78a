"""The loop: loss falls, an interrupted run goes on exactly, two processes do what one does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import distributed, multiprocessing
from training_parts import CPU, new_net, recipe, store, target, texts, train

from engine.errors import UserError
from speculative.eagle3.training.batch import make_batch
from speculative.eagle3.training.data import TextStore, batches
from speculative.eagle3.training.loop import Training
from speculative.eagle3.training.loss import Teacher, step_loss, teach
from speculative.eagle3.training.progress import Meter
from speculative.eagle3.training.trainer import STATE
from speculative.eagle3.training.vocabulary import coverage, most_frequent
from speculative.eagle3.training.world import World

SMALL = {"epochs": 4, "tokens": 96}  # several batches an epoch


def weights(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in net.named_parameters()}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_loss_falls(tmp_path: Path, optimizer: str) -> None:
    training = train(
        new_net(store()), store(), recipe(epochs=40, log_seconds=0.0, optimizer=optimizer), tmp_path
    )
    losses = [float(str(entry["loss"])) for entry in training.place.curve]
    assert losses[-1] < losses[0] - 0.5
    lengths = [float(str(entry["accept_length"])) for entry in training.place.curve]
    assert lengths[-1] > lengths[0] + 0.3


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("stop_after", [1, 5])
def test_a_stopped_run_goes_on_to_the_same_weights(tmp_path: Path, optimizer: str, stop_after: int) -> None:
    how = recipe(**SMALL, optimizer=optimizer)
    whole = train(new_net(store()), store(), how, tmp_path)
    assert whole.place.step > 8
    first = Training(new_net(store()), target(), store(), how, World(0, 1, CPU), tmp_path)
    asked = iter(range(10_000))
    assert not first.run(lambda: next(asked) >= stop_after, lambda line: None)
    assert first.place.step == stop_after
    net = new_net(store(), seed=9)  # the checkpoint decides, not the start
    second = Training(net, target(), store(), how, World(0, 1, CPU), tmp_path)
    second.resume(tmp_path)
    assert second.run(lambda: False, lambda line: None)
    for name, expected in weights(whole._net).items():
        assert torch.equal(expected, weights(net)[name]), name


def _process(rank: int, folder: Path, result: Path) -> None:
    torch.set_num_threads(1)
    meeting = (folder / "meeting").as_uri()  # a file: no port to lose to another test
    distributed.init_process_group("gloo", meeting, rank=rank, world_size=2)
    net = new_net(store())
    train(net, store(), recipe(**SMALL), folder, world=World(rank, 2, CPU))
    if rank == 0:
        torch.save(net.state_dict(), result)
    distributed.barrier()  # a process that leaves while another still talks to it may take it down
    distributed.destroy_process_group()


def test_two_processes_do_what_one_does(tmp_path: Path) -> None:
    multiprocessing.spawn(_process, (tmp_path, tmp_path / "two.pt"), nprocs=2)
    two = torch.load(tmp_path / "two.pt", weights_only=True)
    net = new_net(store())
    start = weights(net)
    train(net, store(), recipe(**SMALL), tmp_path)
    for name, one in weights(net).items():
        moved = (one - start[name]).norm()
        assert (two[name] - one).norm() < 0.02 * moved + 1e-7, name


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    train(new_net(store()), store(), recipe(epochs=1), tmp_path)
    other = Training(new_net(store(), vocab=100), target(), store(), recipe(), World(0, 1, CPU), tmp_path)
    with pytest.raises(UserError, match=r"no checkpoint of this training run: .*size mismatch for .*head"):
        other.resume(tmp_path)
    with pytest.raises(UserError, match="cannot read the checkpoint"):
        other.resume(tmp_path / "nowhere.pt")


def test_a_checkpoint_of_other_text_is_refused(tmp_path: Path) -> None:
    """Its place counts batches of that text: in another one it would skip some and repeat others."""
    train(new_net(store()), store(), recipe(epochs=1), tmp_path)
    less = TextStore.of(texts()[1:])
    other = Training(new_net(store()), target(), less, recipe(), World(0, 1, CPU), tmp_path)
    with pytest.raises(UserError, match=r"trained on other text.*task\.text and task\.evaluate"):
        other.resume(tmp_path)


@pytest.mark.parametrize("log_seconds", [0.0, 1e9])
def test_training_that_diverges_ends_with_a_sentence(tmp_path: Path, log_seconds: float) -> None:
    wild = recipe(lr=1e30, warmup=0.0, log_seconds=log_seconds)
    with pytest.raises(UserError, match=r"training diverged: .*task\.trainer\.lr=1e\+30"):
        train(new_net(store()), store(), wild, tmp_path)
    assert not (tmp_path / STATE).exists(), "nothing to go on from"


def test_a_checkpoint_that_cannot_be_written_costs_no_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone = tmp_path / "gone"
    training = train(new_net(store()), store(), recipe(epochs=1, save_seconds=0.0), gone)
    assert training.place.epoch == 1
    assert f"the checkpoint {gone / STATE} cannot be written" in caplog.text


@pytest.mark.parametrize("missing", [0, 7])
def test_loss_and_its_gradient_equal_plain_cross_entropy(missing: int) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(11, 8, requires_grad=True)
    head = torch.randn(20, 8, requires_grad=True)
    probs = torch.rand(30, 20).softmax(-1)
    best = probs.argmax(-1)
    best[:missing] = -1
    rows = torch.arange(2, 13)
    loss, match = step_loss(hidden, head, Teacher(probs, best), rows, torch.float32)
    grads = torch.autograd.grad(loss * 0.5, (hidden, head))
    log_q = (hidden @ head.T).log_softmax(-1)
    expected = -(probs[rows] * log_q).sum(-1)[best[rows] >= 0].sum()
    torch.testing.assert_close(loss, expected)
    assert match.tolist() == (log_q.argmax(-1) == best[rows]).tolist()
    for got, wanted in zip(grads, torch.autograd.grad(expected * 0.5, (hidden, head)), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_the_teacher_is_the_target_on_the_draft_vocabulary() -> None:
    hidden = torch.randn(9, target().shape.hidden_size)
    ids = torch.tensor([3, 5, 200, 400])
    teacher = teach(target().logits, hidden, ids, torch.float32)
    full = target().logits(hidden)
    torch.testing.assert_close(teacher.probs, full[:, ids].softmax(-1))
    expected = [ids.tolist().index(i) if i in ids.tolist() else -1 for i in full.argmax(-1).tolist()]
    assert teacher.best.tolist() == expected
    own = full.argmax(-1)[:1]
    assert teach(target().logits, hidden[:1], own, torch.float32).best.tolist() == [0]


@pytest.mark.parametrize("prompts_too", [False, True])
def test_rows_and_teachers_of_each_step(prompts_too: bool) -> None:
    """Row t of step k learns the law of token t + 2 + k, from the target at t + 1 + k of its sequence."""
    text = store()
    chosen = [4, 1, 3]
    batch = make_batch(text, np.array(chosen), 3, CPU, prompts_too=prompts_too)
    starts = np.concatenate(([0], np.cumsum(batch.lengths)))
    for step, rows in enumerate(batch.steps):
        pairs = []
        for b, index in enumerate(chosen):
            prompt = 1 if prompts_too else int(text.prompts[index])
            pairs += [
                (b * batch.longest + t, starts[b] + t + 1 + step)
                for t in range(prompt - 1, batch.lengths[b] - 2 - step)
            ]
        assert list(zip(rows.student.tolist(), batch.teachers[rows.teacher].tolist(), strict=True)) == pairs


def test_batches_hold_every_sequence_once_within_the_size() -> None:
    text = store(texts(40, 8))
    for epoch in (0, 1):
        found = batches(text, epoch, 3, 160)
        assert sorted(i for batch in found for i in batch.tolist()) == list(range(len(text)))
        assert all(len(b) * text.lengths[b].max() <= 160 or len(b) == 1 for b in found)
    orders = [
        [b.tolist() for b in batches(text, epoch, seed, 160)] for epoch, seed in ((0, 3), (0, 3), (1, 3))
    ]
    assert orders[0] == orders[1] != orders[2]


def test_vocabulary_keeps_the_most_frequent_and_the_end() -> None:
    text = TextStore.of([((1, 2, 7, 7, 7, 9, 9, 4), 2)])
    counts = text.counts(12)
    assert counts.tolist() == [0, 0, 0, 0, 1, 0, 0, 3, 0, 2, 0, 0]
    vocabulary = most_frequent(counts, 3, (11,))
    assert vocabulary.ids.tolist() == [7, 9, 11]
    assert vocabulary.d2t.tolist() == [7, 8, 9]
    assert vocabulary.t2d.nonzero()[0].tolist() == [7, 9, 11]
    assert coverage(counts, vocabulary) == pytest.approx(5 / 6)
    assert len(most_frequent(counts, 12).ids) == 12


def test_the_meter_counts_chains_not_single_matches() -> None:
    meter, world = Meter(2, CPU), World(0, 1, CPU)
    rows = torch.tensor([2, 3, 4])
    meter.add(0, torch.tensor(6.0), torch.tensor([True, False, True]), rows, 8)
    meter.add(1, torch.tensor(2.0), torch.tensor([True, True]), rows[:2], 8)
    reading = meter.read(world)
    assert reading is not None
    assert reading.loss == 2.0
    assert reading.match == (pytest.approx(2 / 3), 1.0)
    assert reading.chain == (pytest.approx(2 / 3), 0.5)
    assert meter.read(world) is None
