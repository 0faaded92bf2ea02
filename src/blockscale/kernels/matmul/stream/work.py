"""What a launch of the stream kernel does, counted: all that a prediction needs to know."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from blockscale.kernels.matmul.stream.config import Config
from blockscale.kernels.matmul.stream.facts import Facts


class Work(NamedTuple):
    config: Config
    facts: Facts
    rows: float  # of x that a CTA has
    weight_bytes: float  # that are read in a turn
    ctas: float
    resident: int  # CTAs on the busiest SM at a time
    rounds: float  # of them
    turns: float  # over rows of x
    crowded: float  # chance that some ragged group takes one more
    stages_of_k: int  # of a CTA's k
    coded: bool  # x is decoded on its way into shared memory

    def of_call(self, busy: float, turns: float) -> Work:
        """Of one in which so many matrices have rows, over which so many turns are taken."""
        share = busy / self.facts.busy
        ctas, weight_bytes = self.ctas * share, self.weight_bytes * share
        resident, rounds = _rounds(self.config, self.facts, ctas)
        return self._replace(
            weight_bytes=weight_bytes, ctas=ctas, resident=resident, rounds=rounds, turns=turns
        )


def count(config: Config, facts: Facts) -> Work:
    """Of ragged groups, where as many have rows as do on average."""
    ctas = config.output_tiles(facts) * config.splits * facts.busy
    resident, rounds = _rounds(config, facts, ctas)
    turns = max(1, ceil(facts.rows / config.tile_m))
    return Work(
        config=config,
        facts=facts,
        rows=min(config.tile_m, max(facts.rows, 1)),
        weight_bytes=facts.weight_bytes,
        ctas=ctas,
        resident=resident,
        rounds=rounds,
        turns=turns,
        crowded=facts.crowded(turns * config.tile_m) if facts.ragged else 0.0,
        stages_of_k=ceil(ceil(facts.k / config.tile_k) / config.splits),
        coded=decodes_x(config, facts),
    )


def _rounds(config: Config, facts: Facts, ctas: float) -> tuple[int, float]:
    """CTAs on the busiest SM at a time, and rounds of them."""
    sms = facts.device.sms
    resident = min(config.ctas_per_sm, max(1, ceil(ctas / sms)))
    return resident, ctas / (sms * resident)


def decodes_x(config: Config, facts: Facts) -> bool:
    """Whether the kernel decodes x itself: with more rows, CTAs would repeat too much of it."""
    return facts.decodable and config.algorithm == "few"
