"""Text that is none, in answers made of numbered blocks that come one after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from aibox.stream.mends.piece import Piece
from aibox.stream.mends.text import Call, Part, Scanner, Text, Thinking


class BlockText(ABC):
    """Takes thinking or tool calls out of text blocks; a piece that may hold one is held back.

    Blocks that come of it are numbered in between, and those behind them anew.
    """

    INDEX: ClassVar[str]  # what the API calls a block's number

    def __init__(self, scanner: Callable[[], Scanner]) -> None:
        self._scanner = scanner()
        self._number = 0  # of the block that is open or comes next
        self._shift = 0  # what numbers of later blocks are raised by
        self._start: list[Piece] = []  # of a text block, until its text is to be sent
        self._in_text = self._open = False
        self._pieces: list[Piece] = []
        self._text = ""  # in these pieces
        self._sent: list[str] = []  # in the block that is open

    @property
    def count(self) -> int:
        return self._scanner.found

    @property
    def quiet(self) -> bool:
        held = self._pieces or self._start or self._scanner.waiting
        return not held and not self._shift and (self._open or not self._in_text)

    @abstractmethod
    def feed(self, piece: Piece) -> Sequence[Piece]:
        """What takes the piece's place."""

    def rest(self) -> Sequence[Piece]:
        return self._released() if self._pieces else []

    def _begin(self, piece: Piece, *, in_text: bool) -> Piece:
        """Another block begins, with this piece."""
        piece = self._shifted(piece)
        self._number = piece.chunk.get(self.INDEX, 0)
        self._in_text, self._open, self._sent = in_text, False, []
        return piece

    def _said(self, piece: Piece, text: str) -> list[Piece]:
        """A piece of text in the block that is open."""
        whole = self._text + text
        parts, undecided = self._scanner.scan(whole, final=False)
        self._pieces.append(piece)
        self._text = whole
        if undecided == whole:
            return []
        if parts == [Text(whole)]:
            return self._released()
        return self._taken_apart(parts, undecided)

    def _before_the_end(self) -> list[Piece]:
        """What still comes before a block ends. If it stays closed, nothing is left of it."""
        return self._released() if self._pieces or self._start else []

    def _nothing_left(self) -> None:
        """All of the block became others."""
        self._in_text = False
        self._shift -= 1

    def _released(self) -> list[Piece]:
        start = [] if self._open else self._opened()
        pieces = [self._numbered(piece) for piece in self._pieces]
        self._sent.append(self._text)
        self._pieces, self._text = [], ""
        return [*start, *pieces]

    def _taken_apart(self, parts: list[Part], undecided: str) -> list[Piece]:
        pieces: list[Piece] = []
        for part in parts:
            if isinstance(part, Text):
                pieces += [] if self._open else self._opened()
                pieces.append(self._text_piece(part.text))
                self._sent.append(part.text)
            else:
                pieces += self._inserted(part)
        self._pieces, self._text = [], ""
        if undecided:
            self._pieces, self._text = [self._text_piece(undecided)], undecided
        return pieces

    def _opened(self) -> list[Piece]:
        """The start of the text block: the server's own, if it was not used yet."""
        self._open, self._sent = True, []
        start, self._start = self._start, []
        return [self._numbered(piece) for piece in start] or self._opening()

    def _inserted(self, part: Thinking | Call) -> list[Piece]:
        """A whole block, between what was said before and what comes."""
        pieces: list[Piece] = []
        self._start = []
        if self._open:
            pieces = self._closing()
            self._open = False
            self._number += 1
            self._shift += 1
        pieces += self._block_of(part)
        self._number += 1
        self._shift += 1
        return pieces

    @abstractmethod
    def _opening(self) -> list[Piece]:
        """The start of another text block than the server's."""

    @abstractmethod
    def _closing(self) -> list[Piece]:
        """The end of the text block that is open."""

    @abstractmethod
    def _block_of(self, part: Thinking | Call) -> list[Piece]:
        """A whole block of its own."""

    @abstractmethod
    def _text_piece(self, text: str) -> Piece:
        """More of the text block that is open."""

    def _numbered(self, piece: Piece) -> Piece:
        """The piece as one of the block that is open."""
        if piece.chunk.get(self.INDEX) == self._number:
            return piece
        return piece.edited({**piece.chunk, self.INDEX: self._number})

    def _shifted(self, piece: Piece) -> Piece:
        index = piece.chunk.get(self.INDEX)
        if not self._shift or not isinstance(index, int):
            return piece
        return piece.edited({**piece.chunk, self.INDEX: index + self._shift})
