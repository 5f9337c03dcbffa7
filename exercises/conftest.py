"""`pytest exercises/stage2/test_2_3_waste.py` grades the learner's file, as `python -m exercises check 2.3` does."""

import pytest

from exercises.catalogue import answer_of, exercises


@pytest.fixture
def work(request, tmp_path):
    exercise = next(exercise for exercise in exercises().values() if exercise.test == request.path)
    answer = answer_of(exercise.work, tmp_path)
    yield answer
    answer.settle()
