"""A window is steady if it neither swings nor drifts."""

from forebay_lab.steady import is_steady, steady_from


def test_swings_and_drifts_are_not_steady() -> None:
    assert is_steady([100, 104, 97, 101, 100])
    assert not is_steady([100, 125, 100, 100, 100]), "it swings by more than a fifth"
    assert not is_steady([100, 97, 94, 91, 88]), "it falls by more than a tenth"
    assert not is_steady([0, 0, 0, 0, 0])


def test_the_first_steady_window_is_found() -> None:
    warm_up = [400, 390, 300, 310, 200, 190, 150, 150]
    settled = [100, 102, 99, 101, 100, 98, 101, 100, 102, 100]
    assert steady_from(warm_up + settled, 2) == 8
    assert steady_from(warm_up, 2) is None
    assert steady_from([], 2) is None
