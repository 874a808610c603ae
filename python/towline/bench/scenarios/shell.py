"""Command lines of a POSIX shell, as bash reads them: quotes, `$'...'`, comments, operators, variables.

Nothing is run. What only a shell can do, such as a command substitution, is the `problem` of its command. Words are
text, in which bytes that are not UTF-8 are lone surrogates (PEP 383).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field

BLANKS = " \t"
ENDS_WORD = " \t\n;&|()<>"
OPERATOR = re.compile(r";;|;|&&|&(?!>)|\|\||\|&?|[()]")
REDIRECTION = re.compile(r"\d*(?:<<<|<<-?|<&|<>|<|>>|>\||>&|>)|&>>?")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})")
# Words in front of the command that they start.
PREFIXES = {
    *"!{$%",
    "sudo",
    "time",
    "env",
    "exec",
    "command",
    "nohup",
    "do",
    "then",
    "else",
    "if",
    "while",
    "until",
}
# A line that may begin with a command, an assignment, or a command that sets a variable.
STARTS = re.compile(
    r"^[ \t({!]*(?:(?:[^\s'\"#;&|]+[ \t;&|]+){0,6}?(?:\S*/)?curl(?:\.exe)?(?=[\s\\]|\Z)"
    r"|(?:export[ \t]+)?[A-Za-z_]\w*=|(?:for|read)[ \t])",
    re.MULTILINE,
)
SIMPLE_ESCAPES = {
    **{"a": 7, "b": 8, "e": 27, "E": 27, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11},
    **{char: ord(char) for char in "\\'\"?"},
}
ESCAPE = re.compile(
    r"\\(?:u([dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|([0-7]{1,3})|x([0-9a-fA-F]{1,2})|(?:u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8}))|c(.)|(.))",
    re.DOTALL,
)


@dataclass
class Command:
    """One simple command."""

    words: list[str] = field(default_factory=list)
    assignments: list[str] = field(default_factory=list)
    text: str = ""
    problem: str | None = None
    """The step that needs a shell."""
    is_unclosed: bool = False
    """A quote is not closed."""
    notes: list[str] = field(default_factory=list)

    def arguments_of(self, program: str) -> list[str] | None:
        """The arguments, if it starts this program."""
        for at, word in enumerate(self.words):
            if re.fullmatch(rf"(?:.*/)?{program}(?:\.exe)?", word):
                return self.words[at + 1 :]
            if word not in PREFIXES and not ASSIGNMENT.match(word):
                return None
        return None


def commands(text: str, program: str) -> Iterator[Command]:
    """The commands of a script, or of a page with examples, that start this program. Assignments before them count."""
    variables = dict(os.environ)
    at = 0
    while found := STARTS.search(text, at):
        reader = _Reader(text, found.start(), variables)
        is_line = True
        while is_line:
            command, is_line = reader.command()
            if command.arguments_of(program) is not None:
                yield command
            elif command.is_unclosed:
                # Prose, such as "don't".
                reader.at = text.find("\n", found.start()) + 1 or len(text)
                is_line = False
            else:
                _assign(command, variables)
        at = reader.at


def _assign(command: Command, variables: MutableMapping[str, str]) -> None:
    words = command.words
    given = words[1:] if words[:1] == ["export"] else command.assignments if not words else []
    for name, equals, value in (word.partition("=") for word in given):
        if equals and command.problem is None:
            variables[name] = value
        elif equals:
            variables.pop(name, None)
    if words[:1] in (["for"], ["read"]):
        for name in words[1:]:
            variables.pop(name, None)


class _Reader:
    def __init__(self, text: str, at: int, variables: MutableMapping[str, str]) -> None:
        self.text = text
        self.at = at
        self._variables = variables
        self._command = Command()
        self._is_target = False
        """The next word is the file of a redirection."""

    def command(self) -> tuple[Command, bool]:
        """The next command, and whether its line goes on after it."""
        self._command = Command()
        begin = self.at
        goes_on = self._words()
        self._command.text = self.text[begin : self.at].strip().removesuffix("\n")
        return self._command, goes_on

    def _words(self) -> bool:
        while self.at < len(self.text):
            char = self.text[self.at]
            redirection = REDIRECTION.match(self.text, self.at)
            if char in BLANKS or self.text.startswith("\\\n", self.at):
                self.at += 1 + (char == "\\")
            elif char == "\n":
                self.at += 1
                return False
            elif char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif redirection:
                self.at = redirection.end()
                self._is_target = True
                if redirection[0].startswith("<<"):
                    self._fail("a here-document")
            elif operator := OPERATOR.match(self.text, self.at):
                self.at = operator.end()
                return True
            else:
                self._next_word()
        return False

    def _next_word(self) -> None:
        words = self._command.words
        may_assign = words in ([], ["export"]) and ASSIGNMENT.match(self.text, self.at)
        is_assignment = may_assign and not words
        word = self._word(splits=not may_assign)
        # Pieces of `$'...'` may have halves of one character.
        word = word.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
        if is_assignment:
            self._command.assignments.append(word)
        elif not self._is_target:
            self._command.words.append(word)
        self._is_target = False

    def _fail(self, problem: str) -> None:
        self._command.problem = self._command.problem or problem

    def _word(self, *, splits: bool) -> str:
        parts: list[str] = []
        begin, braces = self.at, []
        while self.at < len(self.text) and (char := self.text[self.at]) not in ENDS_WORD:
            if char == "\\":
                parts.append(self.text[self.at + 1 : self.at + 2].replace("\n", "") or "")
                self.at += 2
            elif char == "'":
                parts.append(self._until("'"))
            elif self.text.startswith("$'", self.at):
                parts.append(self._ansi())
            elif char == '"' or self.text.startswith('$"', self.at):
                self.at += char == "$"
                parts.append(self._double())
            elif char in "$`":
                value = self._expansion()
                if splits and (re.search(r"[\s*?\[]", value) or not value):
                    self._fail("the splitting of a value without quotes")
                parts.append(value)
            elif char == "~" and self.at == begin and re.match(r"~(?=/|\s|\Z)", self.text[self.at :][:2]):
                parts.append(os.path.expanduser("~"))
                self.at += 1
            else:
                braces += [char] if char in "{,}" else []
                parts.append(char)
                self.at += 1
        word = "".join(parts)
        # A shell makes two URLs of one with `{a,b}`, as curl does; of anything else it makes something else.
        if re.search(r"\{.*,.*\}", "".join(braces)) and "://" not in word:
            self._fail("the expansion of { } without quotes")
        return word

    def _until(self, quote: str) -> str:
        end = self.text.find(quote, self.at + 1)
        if end < 0:
            return self._unclosed()
        inside = self.text[self.at + 1 : end]
        self.at = end + 1
        return inside

    def _unclosed(self) -> str:
        self._command.is_unclosed = True
        self.at = len(self.text)
        return ""

    def _double(self) -> str:
        self.at += 1
        parts: list[str] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            following = self.text[self.at + 1 : self.at + 2]
            if char == '"':
                self.at += 1
                return "".join(parts)
            if char == "\\" and following and following in '$`"\\\n':
                parts.append(following.replace("\n", ""))
                self.at += 2
            elif char in "$`":
                parts.append(self._expansion())
            else:
                parts.append(char)
                self.at += 1
        return self._unclosed()

    def _expansion(self) -> str:
        """A value of a variable; `$` before anything else is itself."""
        found = VARIABLE.match(self.text, self.at)
        if found:
            self.at = found.end()
            name = found[1] or found[2]
            if name not in self._variables:
                self._fail(f"${name}, which is not set here,")
            return self._variables.get(name, "x")
        other = re.compile(r"`[^`]*`?|\$\{[^}]*\}?|\$[0-9@*#?$!-]").match(self.text, self.at)
        if self.text.startswith("$(", self.at):
            self._skip_parentheses()
        elif other:
            self.at = other.end()
        else:
            self.at += 1
            return "$"
        self._fail("an expansion")
        return "x"

    def _skip_parentheses(self) -> None:
        self.at += 1
        depth = 0
        for found in re.compile(r"[()]").finditer(self.text, self.at):
            depth += 1 if found[0] == "(" else -1
            if depth == 0:
                self.at = found.end()
                return
        self.at = len(self.text)

    def _ansi(self) -> str:
        """`$'...'`, in which bash, ksh and zsh have the escapes of C."""
        found = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL).match(self.text, self.at)
        if not found:
            return self._unclosed()
        self.at = found.end()
        plain, end = bytearray(), 0
        for escape in ESCAPE.finditer(found[1]):
            plain += found[1][end : escape.start()].encode("utf-8", "surrogateescape")
            end = escape.end()
            plain += self._escaped(escape)
        plain += found[1][end:].encode("utf-8", "surrogateescape")
        if 0 in plain:
            self._fail("a text with the byte 0")
        return plain.decode("utf-8", "surrogateescape")

    def _escaped(self, escape: re.Match[str]) -> bytes:
        pair, octal, code, short, long, control, other = escape.groups()
        if pair:
            # Browsers write a character beyond U+FFFF so; bash makes bytes of it that are not UTF-8.
            self._command.notes.append(f"\\u{pair} is sent as the one character that a browser means")
            halves = [int(half, 16).to_bytes(2, "big") for half in pair.split("\\u")]
            return b"".join(halves).decode("utf-16-be").encode()
        if octal or code:
            return bytes([int(octal, 8) & 255 if octal else int(code, 16)])
        if short or long:
            point = int(short or long, 16)
            if point > 0x10FFFF or 0xD800 <= point < 0xE000:
                self._fail(f"{escape[0]}, which is no character,")
                return b""
            return chr(point).encode()
        if control:
            return bytes([ord(control) & 31]) if control.isascii() else b""
        known = SIMPLE_ESCAPES.get(other)
        return bytes([known]) if known is not None else escape[0].encode("utf-8", "surrogateescape")
