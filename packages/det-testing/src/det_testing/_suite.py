"""The common part of all suites of the kit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest

_KIT = __name__.rpartition(".")[0]


class Suite:
    """Tests that a plugin inherits. It supplies fixtures and names the tests that it cannot pass.

    Overriding a test of the kit is a TypeError. An expected failure has a reason and is strict: if
    the test passes, that is a failure. `label` names the subclass in the report. By default it is
    the name of the class.
    """

    expected_failures: ClassVar[Mapping[str, str]] = {}
    """The reason for each test that cannot pass. A name may be `test_name[parameter]`."""
    label: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if _is_of_the_kit(cls):
            return
        tests = kit_tests(cls)
        if changed := sorted(
            name for name, test in tests.items() if getattr(cls, name) is not test
        ):
            names = ", ".join(changed)
            raise TypeError(
                f"{cls.__name__} overrides {names}; name it in expected_failures with a reason"
            )
        for name, reason in cls.expected_failures.items():
            if name.partition("[")[0] not in tests:
                raise TypeError(
                    f"{cls.__name__} expects {name} to fail, but the kit has no such test"
                )
            if not isinstance(reason, str) or not reason.strip():
                raise TypeError(f"{cls.__name__} expects {name} to fail without a reason; say why")

    @pytest.fixture(autouse=True)
    def _expect_failure(self, request: pytest.FixtureRequest) -> None:
        test: pytest.Function = request.node
        reason = self.expected_failures.get(test.name) or self.expected_failures.get(
            test.originalname
        )
        if reason:
            test.add_marker(pytest.mark.xfail(reason=reason, strict=True))


def kit_tests(suite: type[Suite]) -> dict[str, object]:
    """Return the tests that the kit defines for a suite, by name."""
    bases = [base for base in reversed(suite.__mro__) if _is_of_the_kit(base)]
    return {
        name: test
        for base in bases
        for name, test in vars(base).items()
        if name.startswith("test_")
    }


def _is_of_the_kit(cls: type) -> bool:
    return cls.__module__.startswith(f"{_KIT}.")
