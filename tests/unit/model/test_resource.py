from lcm.model.base.resource import MAX_TEXT_LENGTH, shorten_text


def test_a_text_within_its_limit_stays_as_it_is() -> None:
    assert shorten_text("abcd", 4) == "abcd"
    assert shorten_text("a" * MAX_TEXT_LENGTH) == "a" * MAX_TEXT_LENGTH


def test_a_text_that_was_cut_ends_with_a_mark_and_keeps_its_limit() -> None:
    assert shorten_text("abcde", 4) == "abc…"
    assert len(shorten_text("a" * (MAX_TEXT_LENGTH + 1))) == MAX_TEXT_LENGTH
