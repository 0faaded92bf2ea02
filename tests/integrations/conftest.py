import logging

import pytest


class Messages(logging.Handler):
    """What is logged, as it is formatted."""

    def __init__(self):
        super().__init__(logging.INFO)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())

    def __str__(self):
        return "\n".join(self.texts)


@pytest.fixture
def logged():
    """Messages of the library, from the level of information on."""
    messages = Messages()
    loggers = [logging.getLogger(name) for name in ("blockscale", "vllm.blockscale")]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.INFO)
        each.addHandler(messages)
    yield messages
    for each, level in zip(loggers, levels, strict=True):
        each.setLevel(level)
        each.removeHandler(messages)
