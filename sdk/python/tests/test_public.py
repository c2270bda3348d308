"""What the SDK promises about itself: names, their words, its size."""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
import unittest
from pathlib import Path

import sigmaos
from sigmaos import aio, blocking, context, errors
from sigmaos.core import Core

ROOT = Path(__file__).parents[1]
REFERENCE = Path(__file__).parents[3] / "docs/reference/python.md"
CODE_MOST = 3500


def methods(cls: type) -> set[str]:
    return {n for n, v in inspect.getmembers(cls) if not n.startswith("_") and (callable(v) or isinstance(v, property))}


class TestPublic(unittest.TestCase):
    def test_names(self) -> None:
        for name in sigmaos.__all__:
            self.assertTrue(getattr(sigmaos, name).__doc__, name)
        self.assertEqual(sigmaos.__all__, sorted(sigmaos.__all__))

    def test_faces_have_the_same_methods(self) -> None:
        for name in ("Client", "Lease", "Leadership", "Membership", "CallClient", "CallServer"):
            plain, of_aio = methods(getattr(blocking, name)), methods(getattr(aio, name))
            self.assertEqual(plain - {"within", "open"}, of_aio - {"streams"}, name)
        self.assertIsNotNone(inspect.getdoc(aio.Client.get))
        self.assertIsNotNone(inspect.getdoc(sigmaos.Client.put))

    def test_all_operations_have_a_face(self) -> None:
        inside = {"open_handle", "get_versioned", "system", "lease_request", "renew", "forget_lease"}
        self.assertEqual(methods(Core) - inside - methods(sigmaos.Client), set())

    def test_reference_has_all(self) -> None:
        text = REFERENCE.read_text()
        for name in [*sigmaos.__all__, *methods(sigmaos.Client), *methods(aio.Client), *methods(sigmaos.File)]:
            if name in dir(io.RawIOBase):
                continue
            self.assertRegex(text, rf"\b{re.escape(name)}\b")

    def test_one_tree_of_errors(self) -> None:
        classes = [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, Exception)]
        for c in classes:
            self.assertTrue(issubclass(c, sigmaos.SigmaError))
            self.assertIn(c.__name__, errors.__doc__ or "")
            self.assertIn(c.__name__, sigmaos.__doc__ or "")
        for kind in range(20):
            e = errors.of_kind(kind, "m", "/p", "h")
            self.assertEqual((e.kind, e.message, e.path, e.hint), (kind, "m", "/p", "h"))
            self.assertTrue(kind == 0 or type(e) is not sigmaos.SigmaError)
        self.assertIs(type(errors.of_kind(999)), sigmaos.SigmaError)
        self.assertEqual(errors.of_kind(999).kind, 999)
        for c in (sigmaos.Busy, sigmaos.Unavailable):
            self.assertTrue(issubclass(c, sigmaos.Retryable))

    def test_imports_nothing_but_the_standard_library(self) -> None:
        import sys  # typing_extensions: for type checkers only

        for path in (ROOT / "sigmaos").glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and not node.level:
                    names = [node.module or ""]
                for name in names:
                    self.assertIn(name.split(".")[0], {*sys.stdlib_module_names, "typing_extensions"}, path)

    def test_code_is_short(self) -> None:
        lines = 0
        for path in (ROOT / "sigmaos").glob("*.py"):
            text = path.read_text()
            told: set[int] = set()
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
                    told.update(range(node.lineno, (node.end_lineno or 0) + 1))
            code = set()
            for t in tokenize.generate_tokens(io.StringIO(text).readline):
                if t.type not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
                                  tokenize.ENDMARKER):
                    code.update(range(t.start[0], t.end[0] + 1))
            lines += len(code - told)
        self.assertLessEqual(lines, CODE_MOST)

    def test_typed(self) -> None:
        self.assertTrue((ROOT / "sigmaos/py.typed").exists())

    def test_context(self) -> None:
        import os
        from unittest import mock

        credential = "sigma-credential-1.r.n.s"
        with mock.patch.dict(os.environ, {"SIGMA_DATA": "/d", "SIGMA_CREDENTIAL": credential}, clear=True):
            self.assertEqual(context.resolve(None, None, None), context.Where("/d/realm.sock", credential, ""))
            self.assertEqual(context.resolve(None, None, "x"), context.Where("/d/sigmad/admin.sock", None, "x"))
        with mock.patch.dict(os.environ, {"SIGMA_REALM": "team", "SIGMA_ADDR": "/a"}, clear=True):
            self.assertEqual(context.resolve(None, None, None), context.Where("/a", None, "team"))
            with self.assertRaises(sigmaos.Invalid):
                context.resolve(None, "/no/file", None)

    def test_words(self) -> None:
        text = "sigma-endpoint/1 r m p AAECAwQFBgcICQoLDA0ODw stream"
        self.assertEqual(str(sigmaos.Endpoint.parse(text)), text)
        for bad in ("", text + " x", text.replace("stream", "x"), text.replace("AAEC", "AA+C"),
                    text.replace("/1", "/2"), text.replace("DA0ODw", "DA0ODx"), text.replace(" p ", " P ")):
            with self.assertRaises(sigmaos.Invalid):
                sigmaos.Endpoint.parse(bad)
        status = sigmaos.Status(2, -1, 17, "no")
        self.assertIsInstance(status.error, sigmaos.NotExecutable)
        self.assertEqual((status.ok, status.outcome), (False, sigmaos.Outcome.ERROR))
        self.assertIsNone(sigmaos.Status(1).error)
        d = sigmaos.Descriptor("/bin/x", near="m1", view=[sigmaos.ViewEntry("/a", "/b", 7)])
        self.assertEqual(sigmaos.Descriptor.unpack(d.pack()), d)


if __name__ == "__main__":
    unittest.main()
