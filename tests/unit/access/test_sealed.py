"""What is sealed opens only with its key and only as it was; keys are nobody's but their owner's."""

import base64
import itertools
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
import pytest
from hypothesis import strategies

from harness.suite import for_all
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Invalid, LcmError, Stuck, TooLarge
from lcm.model.base.resource import SecretRef, SecretUse
from lcm.providers.local.sealed import (
    MAX_BYTES,
    KeyRing,
    add_key,
    ensure_keys,
    fingerprint,
    keep_first_key,
    parse_keys,
    read_keys,
)
from lcm.system import clock as lcm_system

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
WORD = Secret("swordfish")
USE = SecretUse.ADMIN_PASSWORD


def ring(*keys: bytes) -> KeyRing:
    numbers = itertools.count(1)
    return KeyRing(keys or (OLD,), new_nonce=lambda: next(numbers).to_bytes(12))


def base64_of(*keys: bytes) -> str:
    return "\n".join(base64.b64encode(key).decode() for key in keys)


@for_all(strategies.text(min_size=1, max_size=200).filter(lambda text: text.isprintable()))
def test_what_is_sealed_can_be_opened(text: str) -> None:
    assert ring().unseal(ring().seal(Secret(text), USE)) == Secret(text)


def test_a_sealed_text_is_a_reference_that_names_its_key_and_shows_nothing() -> None:
    sealed = ring().seal(WORD, USE)
    assert msgspec.convert(sealed, SecretRef) == sealed
    assert sealed.startswith(f"sealed:{fingerprint(OLD)}:LabWorker.admin_password:")
    assert b"swordfish" not in base64.urlsafe_b64decode(sealed.rpartition(":")[2] + "==")


def test_the_longest_secret_still_fits_into_a_reference() -> None:
    msgspec.convert(ring().seal(Secret("x" * MAX_BYTES), USE), SecretRef)
    with pytest.raises(TooLarge, match="at most 3000 bytes"):
        ring().seal(Secret("x" * (MAX_BYTES + 1)), USE)


def test_the_same_secret_is_never_sealed_the_same_twice() -> None:
    keys = KeyRing([lcm_system.new_seal_key()], new_nonce=lcm_system.new_nonce)
    assert len({keys.seal(WORD, USE) for _ in range(100)}) == 100


@pytest.mark.parametrize("text", ["", "a\ud800b"])
def test_what_is_no_text_is_not_sealed(text: str) -> None:
    with pytest.raises(Invalid):
        ring().seal(Secret(text), USE)


def test_a_changed_text_does_not_open() -> None:
    sealed = ring().seal(WORD, USE)
    head, _, body = sealed.rpartition(":")
    for place in range(len(body) - 1):
        other = "A" if body[place] != "A" else "B"
        with pytest.raises(Stuck) as caught:
            ring().unseal(f"{head}:{body[:place]}{other}{body[place + 1 :]}")
        assert caught.value.reason == "SecretUnsealable"


@pytest.mark.parametrize(
    "text", ["", "sealed:", "sealed:x:y", "swordfish", f"sealed:{fingerprint(OLD)}:", "sealed:é:é"]
)
@pytest.mark.parametrize("more", ["", "A", "AAAA", "=", "\n"])
def test_garbage_does_not_open_and_is_not_repeated(text: str, more: str) -> None:
    with pytest.raises(Stuck) as caught:
        ring().unseal(text + more)
    assert caught.value.reason == "SecretUnsealable"
    assert "swordfish" not in str(caught.value)


def test_a_text_of_an_unknown_key_says_which_key_is_missing() -> None:
    sealed = ring(OLD).seal(WORD, USE)
    with pytest.raises(Stuck, match=fingerprint(OLD)) as caught:
        ring(NEW).unseal(sealed)
    assert caught.value.reason == "SealKeyMissing"
    assert sealed not in str(caught.value)


def test_a_text_cannot_be_passed_off_as_sealed_by_another_key() -> None:
    body = ring(OLD).seal(WORD, USE).rpartition(":")[2]
    with pytest.raises(Stuck):
        ring(NEW, OLD).unseal(f"sealed:{fingerprint(NEW)}:{body}")


def test_the_first_key_seals_and_all_of_them_open() -> None:
    both = ring(NEW, OLD)
    assert both.current == fingerprint(NEW)
    assert both.unseal(ring(OLD).seal(WORD, USE)) == both.unseal(ring(NEW).seal(WORD, USE)) == WORD


def test_resealing_takes_what_is_old_to_the_current_key_and_leaves_the_rest() -> None:
    both, old = ring(NEW, OLD), ring(OLD).seal(WORD, USE)
    anew = both.reseal(old)
    assert ring(NEW).unseal(anew) == WORD
    assert both.reseal(anew) == anew
    with pytest.raises(Stuck):
        ring(NEW).reseal(old)


def test_keys_do_not_print() -> None:
    assert all(str(form) not in f"{ring()!r}{vars(ring())}" for form in (OLD, OLD.hex(), base64_of(OLD)))


def test_keys_are_read_from_lines_or_a_list() -> None:
    text = f"# the new one\n{base64_of(NEW)}  # seals\n\n{base64_of(OLD)}\n{base64_of(NEW)}"
    assert parse_keys(text, "KEYS") == [NEW, OLD]
    assert parse_keys(f"{base64_of(NEW)}, {base64_of(OLD)}", "KEYS") == [NEW, OLD]
    assert parse_keys(base64.urlsafe_b64encode(b"\xff" * 32).decode(), "KEYS") == [b"\xff" * 32]


@pytest.mark.parametrize("text", ["", "# none", "swordfish", base64_of(OLD[:31]), f"{base64_of(OLD)} x", "é", "=" * 44])
def test_what_holds_no_keys_is_named_but_not_shown(text: str) -> None:
    with pytest.raises(Invalid, match="LCM_SEAL_KEYS") as caught:
        parse_keys(text, "LCM_SEAL_KEYS")
    assert not text or text not in str(caught.value)


def test_a_file_of_keys_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / "seal.key"
    old = os.umask(0)
    try:
        made = ensure_keys(path, new_key=lcm_system.new_seal_key)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert ensure_keys(path, new_key=lcm_system.new_seal_key) == read_keys(path) == made
    assert [file.name for file in path.parent.iterdir()] == ["seal.key"]


def test_of_several_who_make_the_file_one_does(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: ensure_keys(tmp_path / "k", new_key=lcm_system.new_seal_key), range(16)))
    assert all(keys == made[0] for keys in made)


def test_what_somebody_killed_left_behind_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / ".k.new").write_text("half a k")
    assert ensure_keys(tmp_path / "k", new_key=lambda: OLD) == [OLD]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o610])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "k"
    ensure_keys(path, new_key=lambda: OLD)
    path.chmod(mode)
    made = partial(ensure_keys, new_key=lambda: NEW)
    for reading in (read_keys, made, partial(add_key, key=NEW), keep_first_key):
        with pytest.raises(Stuck, match="0600") as caught:
            reading(path)
        assert caught.value.reason == "SealKeyExposed"


def test_a_file_that_is_missing_or_strange_is_not_made_up(tmp_path: Path) -> None:
    with pytest.raises(Stuck, match="does not exist"):
        read_keys(tmp_path / "k")
    (tmp_path / "folder").mkdir()
    with pytest.raises(Stuck):
        read_keys(tmp_path / "folder")
    (tmp_path / "broken").write_text("swordfish")
    (tmp_path / "broken").chmod(0o600)
    with pytest.raises(Invalid) as caught:
        ensure_keys(tmp_path / "broken", new_key=lambda: OLD)
    assert "swordfish" not in str(caught.value)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(LcmError):
        ensure_keys(tmp_path / "dangling", new_key=lambda: OLD)


def test_keys_are_changed_without_losing_what_they_sealed(tmp_path: Path) -> None:
    path = tmp_path / "k"
    sealed = ring(*ensure_keys(path, new_key=lambda: OLD)).seal(WORD, USE)
    both = ring(*add_key(path, NEW))
    assert both.current == fingerprint(NEW)
    anew = both.reseal(sealed)
    assert ring(*keep_first_key(path)).unseal(anew) == WORD
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_folder_that_is_gone_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(LcmError):
        add_key(tmp_path / "gone" / "k", NEW)
