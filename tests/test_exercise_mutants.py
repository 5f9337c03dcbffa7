"""Wrong answers made by mutation: each fails with a message, or is listed as equivalent with the reason."""

import pytest

from exercises import catalogue, examples
from exercises import mutants as exercise_mutants
from exercises.catalogue import exercises
from exercises.mutants import chosen, is_listed, is_undefined, killed, listed, mutants, wholes

by_number = pytest.mark.parametrize("number", exercises())


@pytest.fixture(autouse=True)
def quick(tmp_path, monkeypatch):
    """Nobody reads the examples here, so none is minimized; and no learner's record is touched."""
    monkeypatch.setattr(examples, "SIMPLER", 0)
    monkeypatch.setattr(catalogue, "PROGRESS", tmp_path / "progress.json")


def survivors(number, share, seed=0):
    """The mutants that pass and are not listed, and those that are listed and fail."""
    found = []
    for exercise, mutant in chosen([number], share, seed):
        dead, message = killed(exercise, mutant)
        assert message or not dead
        told_though_listed = dead and (number, mutant.name) in listed() and not is_undefined(exercise)
        if told_though_listed or (not dead and not is_listed(number, mutant.name)):
            found.append(mutant.name)
    return found


@by_number
def test_a_few_mutants_fail(number):
    assert survivors(number, 0.02, seed=len(number)) == []


@pytest.mark.soak
@by_number
def test_every_mutant_fails_or_is_equivalent(number):
    assert survivors(number, 1.0) == []


@pytest.mark.soak
@pytest.mark.parametrize("number", [*(f"milestone-{number}" for number in range(1, 9)), "capstone"])
def test_a_few_mutants_of_an_engine_fail(number):
    """`python -m exercises.mutants` tries all of a milestone's, and for `capstone` a share of them."""
    assert survivors(number, 0.05, seed=len(number)) == []


def test_only_what_a_learner_writes_is_changed():
    files = {mutant.where.split()[0] for mutant in mutants(wholes()["milestone-6"])}
    assert files == {"block_manager.py"}
    places = {mutant.where.split()[1] for mutant in mutants(wholes()["capstone"])}
    assert "rotate" in places
    assert not any(place.endswith("__init__") for place in places)


def test_a_mutant_of_an_engine_is_told():
    whole = wholes()["milestone-3"]
    mutant = next(mutant for mutant in mutants(whole) if mutant.where.startswith("kv_cache.py KVCache.update"))
    dead, message = killed(whole, mutant)
    assert dead
    assert message


@pytest.mark.parametrize("number", [*exercises(), *wholes()])
def test_what_is_listed_is_there(number):
    names = [mutant.name for mutant in mutants(exercises().get(number) or wholes()[number])]
    assert len(set(names)) == len(names)
    for of, name in listed():
        assert of != number or any(name in (other, other[: len(name) - 1] + "*") for other in names), name
    assert all(listed().values())


def test_the_tool_tells(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["mutants", "2.4", "--share", "0.05"])
    assert exercise_mutants.main() == 0
    assert " killed" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["mutants", "2.4", "--list"])
    exercise_mutants.main()
    assert "border in make_batches: long → 8" in capsys.readouterr().out
