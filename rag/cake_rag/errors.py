"""Errors of the document side. Every leaf is also the standard error that it refines, and can be pickled.

RagError
├── DocumentRejectedError (ValueError)      the bytes cannot become a document
│   ├── EmptyDocumentError
│   ├── EncryptedDocumentError
│   ├── MalformedDocumentError
│   ├── NoTextLayerError                    pages without text: a scan
│   ├── UnsupportedFormatError
│   └── DocumentTooLargeError
├── DocumentNotFoundError (KeyError)
├── DocumentNotReadyError (RuntimeError)
│   └── DocumentFailedError                 its ingestion failed; waiting does not help
├── QuestionRejectedError (ValueError)      empty or too long
├── StoreError (RuntimeError)               database, index or embedding files are unusable
└── EngineError (RuntimeError)
    ├── EngineUnavailableError              not started, starting, or gone
    └── EngineRequestError                  the engine refused this request
"""


class RagError(Exception):
    """Base of all errors of this package."""


class DocumentRejectedError(RagError, ValueError):
    """The uploaded bytes cannot become a document."""


class EmptyDocumentError(DocumentRejectedError):
    """No bytes, or no visible character."""


class EncryptedDocumentError(DocumentRejectedError):
    """A password is needed to read the document."""


class MalformedDocumentError(DocumentRejectedError):
    """The bytes are damaged, truncated, or not text."""


class NoTextLayerError(DocumentRejectedError):
    """The pages hold no text, as in a scan."""


class UnsupportedFormatError(DocumentRejectedError):
    """The content's format is known and not supported."""


class DocumentTooLargeError(DocumentRejectedError):
    """The document is over a size limit."""


class DocumentNotFoundError(RagError, KeyError):
    """No document has this id."""

    def __str__(self) -> str:
        """Give the message without ``KeyError``'s quotes."""
        return str(self.args[0]) if self.args else ""


class DocumentNotReadyError(RagError, RuntimeError):
    """The document is stored and cannot be asked yet."""


class DocumentFailedError(DocumentNotReadyError):
    """The document's ingestion failed: it cannot be asked until it is uploaded again."""


class QuestionRejectedError(RagError, ValueError):
    """The question is empty or too long."""


class StoreError(RagError, RuntimeError):
    """The database, the index, or the embedding files are unusable."""


class EngineError(RagError, RuntimeError):
    """The engine did not do what was asked."""


class EngineUnavailableError(EngineError):
    """The engine is not started, is still loading, or went away."""


class EngineRequestError(EngineError):
    """The engine refused this request."""
