"""A secret shows itself only to who says `reveal`."""

import copy
import pickle

import msgspec
import pytest

from lcm.model.access.secret import Secret


def test_a_secret_never_prints() -> None:
    secret = Secret("swordfish")
    assert secret.reveal() == "swordfish"
    for shown in (str(secret), repr(secret), f"{secret}", f"{secret!r}", f"{[secret]}", "%s" % secret):  # noqa: UP031
        assert "swordfish" not in shown


def test_a_secret_is_not_written_into_documents() -> None:
    with pytest.raises(TypeError):
        msgspec.json.encode({"password": Secret("swordfish")})
    with pytest.raises(TypeError):
        pickle.dumps(Secret("swordfish"))


def test_a_secret_is_blotted_out_of_what_others_wrote() -> None:
    assert Secret("s3").hide_in("token 's3' is not valid") == "token '***' is not valid"
    assert Secret("").hide_in("nothing to hide") == "nothing to hide"


def test_secrets_compare_by_value() -> None:
    assert Secret("a") == Secret("a")
    assert hash(Secret("a")) == hash(Secret("a"))
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert Secret("a")
    assert not Secret("")
    assert copy.copy(Secret("a")) == Secret("a")
