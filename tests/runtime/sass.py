"""Reading machine code: what a kernel reads before it has waited for the kernel ahead of it.

A kernel that is launched with programmatic dependent launch starts while the kernel ahead in the
stream may still write. `griddepcontrol.wait` (ACQBULK) is where that is over. Loads of any kind
count: LDG, LDGSTS (cp.async), and the copies of TMA (UTMALDG, UBLKCP). A load is too early where

- it can be reached from the entry without a wait, and stands before the last wait in the text (what
  follows that, a warp reaches through barriers that open after the wait of another), and
- it stands before the first wait too, or its address does not come from what may be read early: of
  weights that nobody writes any more, a kernel skips the first wait.

Where an address comes from is found by following registers back to the last instruction that sets
them, up to the kernel's arguments in constant memory.
"""

import re
from bisect import bisect_left
from typing import NamedTuple

# Where arguments begin in constant memory; and the address of constant memory itself, with where
# arguments begin relative to it, from which addresses of tensor maps are made.
_ARGUMENTS = {8: 0x160, 9: 0x210, 10: 0x380, 12: 0x380}
_CONSTANTS = {9: (0x198, 0x30)}

_LINE = re.compile(
    r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+) )?([A-Z][\w.]*)\s*([^;]*);", re.MULTILINE
)
_REGISTER = re.compile(r"\b(U?R)(\d+)\b")
_CONSTANT = re.compile(r"c\[0x0\]\[(0x[0-9a-f]+)\]")
_INDEXED = re.compile(r"c\[0x0\]\[(U?R\d+)\+(0x[0-9a-f]+)\]")
_IMMEDIATE = re.compile(r"(?<![\w\[+])-?0x[0-9a-f]+")
_WIDE = re.compile(r"\.64|\.WIDE|^CS2R")


class Instruction(NamedTuple):
    address: int
    condition: str | None
    opcode: str
    operands: str

    @property
    def is_load(self) -> bool:
        return self.opcode.split(".")[0] in ("LDG", "LDGSTS", "UTMALDG", "UBLKCP")

    @property
    def is_constant(self) -> bool:
        return self.opcode.split(".")[0] in ("LDC", "ULDC", "LDCU")

    @property
    def is_wait(self) -> bool:
        return self.opcode == "ACQBULK"

    @property
    def target(self) -> int | None:
        """Of a branch."""
        if self.opcode.split(".")[0] not in ("BRA", "CALL", "BRX"):
            return None
        found = re.findall(r"0x[0-9a-f]+", self.operands)
        return int(found[-1], 16) if found else None

    @property
    def never_goes_on(self) -> bool:
        ends = self.opcode.split(".")[0] in ("BRA", "EXIT", "RET")
        return (
            ends
            and self.condition is None
            and ".ANY" not in self.opcode
            and not re.match(r"\s*!?U?P\d", self.operands)
        )

    @property
    def sets(self) -> list[str]:
        """Registers, the lowest first."""
        if self.opcode.split(".")[0] in ("STG", "STS", "LDGSTS", "BRA", "UTMALDG", "SYNCS", "RED"):
            return []
        first = _REGISTER.match(self.operands.strip())
        if first is None:
            return []
        kind, number = first[1], int(first[2])
        count = 4 if ".128" in self.opcode else 2 if _WIDE.search(self.opcode) else 1
        return [f"{kind}{number + i}" for i in range(count)]

    @property
    def address_registers(self) -> set[str]:
        """Of a load: those of the last bracket, of the source."""
        bracket = re.findall(r"\[([^\]]*)\]", self.operands)[-1]
        return {f"{kind}{int(at) + i}" for kind, at in _REGISTER.findall(bracket) for i in (0, 1)}


def instructions(text: str) -> list[Instruction]:
    return [
        Instruction(int(at, 16), condition or None, opcode, operands)
        for at, condition, opcode, operands in _LINE.findall(text)
    ]


def reached_without_waiting(code: list[Instruction]) -> set[int]:
    """Positions."""
    place = {each.address: i for i, each in enumerate(code)}
    reached, left = set(), [0]
    while left:
        i = left.pop()
        if i in reached or i >= len(code):
            continue
        reached.add(i)
        each = code[i]
        if each.is_wait and each.condition is None:
            continue
        if each.target in place:
            left.append(place[each.target])
        if not each.never_goes_on:
            left.append(i + 1)
    return reached


Setters = dict[str, list[int]]  # positions of the instructions that set a register


def setters_of(code: list[Instruction]) -> Setters:
    found: Setters = {}
    for i, each in enumerate(code):
        for register in each.sets:
            found.setdefault(register, []).append(i)
    return found


def arguments_of(
    code: list[Instruction], setters: Setters, position: int, major: int, alignment: int
) -> set[int]:
    """Offsets of the arguments that the address of a load is made of."""
    found: set[int] = set()
    seen: set[tuple[str, int]] = set()
    left = [(register, position) for register in code[position].address_registers]
    constants, before = _CONSTANTS.get(major, (None, 0))
    first = -(-_ARGUMENTS[major] // alignment) * alignment
    while left:
        register, end = left.pop()
        if (register, end) in seen:
            continue
        seen.add((register, end))
        for i in _before(setters, register, end):
            each = code[i]
            sources = each.operands.split(",", 1)[1] if "," in each.operands else ""
            word = 4 * each.sets.index(register) if each.is_constant else 0
            read = {int(at, 16) + word for at in _CONSTANT.findall(sources)}
            read |= {
                int(at, 16) + word + _least(code, setters, index, i)
                for index, at in _INDEXED.findall(sources)
            }
            found |= {at - first for at in read if at >= first}
            names = {f"{kind}{at}" for kind, at in _REGISTER.findall(sources)}
            if any(_is_of_constants(code, setters, name, i, constants) for name in names):
                found |= {int(at, 16) - before for at in re.findall(r" (0x[0-9a-f]+)", sources)}
            else:
                left += [(name, i) for name in names]
            if each.condition is None or _is_under_the_same(code, i, end):
                break
    return found


def _least(code: list[Instruction], setters: Setters, register: str, end: int) -> int:
    """What is added to a number times a constant, where a register holds their sum: the first place
    of an array that it is an index of."""
    for i in _before(setters, register, end)[:1]:
        each = code[i]
        added = each.operands.rsplit(",", 1)[1]
        if number := _IMMEDIATE.search(added):
            return int(number[0], 16)
        if each.opcode == "IMAD" and (name := _REGISTER.search(added)):
            return _least(code, setters, "".join(name.groups()), i)
    return 0


def _is_under_the_same(code: list[Instruction], position: int, user: int) -> bool:
    """Whether an instruction runs wherever a later one does: both under one condition, which
    nothing between them names."""
    condition = code[position].condition
    if condition is None or condition != code[user].condition:
        return False
    predicate = re.compile(rf"\b{condition.lstrip('@!')}\b")
    return not any(predicate.search(each.operands) for each in code[position:user])


def _before(setters: Setters, register: str, end: int) -> list[int]:
    """Instructions that set a register, the last before `end` first."""
    every = setters.get(register, [])
    return every[: bisect_left(every, end)][::-1]


def _is_of_constants(
    code: list[Instruction], setters: Setters, register: str, end: int, constants: int | None
) -> bool:
    """Whether a register holds the address of constant memory."""
    last = _before(setters, register, end)[:1]
    return any(
        constants in {int(at, 16) for at in _CONSTANT.findall(code[i].operands)} for i in last
    )


class Arguments(NamedTuple):
    """Offsets of pointers and of tensor maps."""

    settled: tuple[range, ...] = ()  # of what may be read early
    written: tuple[range, ...] = ()  # of what may not
    alignment: int = 8  # of the struct, in constant memory


def early_loads(code: list[Instruction], major: int, arguments: Arguments) -> list[Instruction]:
    """Loads that stand where the kernel ahead may still write what they read."""
    waits = [i for i, each in enumerate(code) if each.is_wait]
    if not waits:
        return []
    reached, setters = reached_without_waiting(code), setters_of(code)
    early = [i for i in sorted(reached) if code[i].is_load and i < waits[-1]]
    return [
        code[i]
        for i in early
        if i < waits[0]
        or not _is_settled(arguments_of(code, setters, i, major, arguments.alignment), arguments)
    ]


def _is_settled(offsets: set[int], arguments: Arguments) -> bool:
    def some(ranges: tuple[range, ...]) -> bool:
        return any(offset in each for offset in offsets for each in ranges)

    return some(arguments.settled) and not some(arguments.written)
