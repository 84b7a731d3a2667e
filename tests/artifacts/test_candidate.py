import ast
import gc
import threading
import time
from collections.abc import Iterator

import pytest

from artifacts.candidate import expression_tree, python_literal, syntax_tree

SOURCE = "x = [" + ", ".join(f"f({n}, (a + {n}) * [b, {{'c': {n}}}])" for n in range(100)) + "]\n"


class Cycle:
    """Garbage whose end lets other threads run in the middle of whatever the collector interrupted."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        time.sleep(0)


@pytest.fixture
def eager_collector() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(50, 2, 2)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("eager_collector")
def test_threads_that_parse_at_once_do_not_disturb_each_other() -> None:
    problems: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(20):
                Cycle()
                syntax_tree(SOURCE)
        except SystemError as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_what_the_parser_warns_of_is_passed_over() -> None:
    assert len(syntax_tree("x = '\\d'\n").body) == 1


def test_literals_are_read() -> None:
    assert python_literal("{'a': [1, None]}") == {"a": [1, None]}


def test_an_expression_is_one() -> None:
    assert ast.unparse(expression_tree("a[0] + b")) == "a[0] + b"
    with pytest.raises(SyntaxError):
        expression_tree("a; b")
