import pytest

from jaxformer.errors import UserError, exit_code


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UserError("expected x"), 2, "error: expected x\n"),
        (FloatingPointError("no number"), 1, "error: no number\n"),
        (OSError(28, "No space left on device"), 1, "error: [Errno 28] No space left on device\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (KeyboardInterrupt("step 3 is saved"), 130, "step 3 is saved\n"),
    ],
)
def test_exit_codes(error, code, message, capsys):
    def fail():
        raise error

    assert exit_code(fail) == code
    assert capsys.readouterr().err == message


def test_what_is_done_is_silent(capsys):
    assert exit_code(lambda: None) == 0
    assert capsys.readouterr().err == ""


def test_other_errors_are_bugs():
    with pytest.raises(ZeroDivisionError):
        exit_code(lambda: print(1 / 0))
