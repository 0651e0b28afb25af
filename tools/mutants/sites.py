"""Finds every mutation of a source in libclang's syntax tree of it.

Mutated are function bodies and the constants of a file. Left alone are: what only CheckInvariants calls, since it is a
test itself; functions that return text, texts of errors and everything that goes into them; checks of broken
invariants (BATON_CHECK) and whatever else a macro expands to, but for a dropped BATON_RETURN_IF_ERROR. Rejected: a
lexer of our own, which does not know types, so that it would neither see which arguments can be swapped nor which
expression is a condition.
"""

import re

from clang.cindex import CursorKind as Kind
from clang.cindex import Index, TranslationUnit, TypeKind

from cpp_text import without_comments
from mutations import Mutation
from text import other_integers, parentheses

FUNCTIONS = (Kind.FUNCTION_DECL, Kind.CXX_METHOD, Kind.CONSTRUCTOR, Kind.DESTRUCTOR, Kind.CONVERSION_FUNCTION,
             Kind.FUNCTION_TEMPLATE)
SCOPES = (Kind.NAMESPACE, Kind.CLASS_DECL, Kind.STRUCT_DECL, Kind.CLASS_TEMPLATE, Kind.LINKAGE_SPEC,
          Kind.UNEXPOSED_DECL)
INTEGERS = (TypeKind.INT, TypeKind.UINT, TypeKind.LONG, TypeKind.ULONG, TypeKind.LONGLONG, TypeKind.ULONGLONG,
            TypeKind.SHORT, TypeKind.USHORT, TypeKind.UCHAR, TypeKind.SCHAR)
ARITHMETIC = (*INTEGERS, TypeKind.DOUBLE, TypeKind.FLOAT, TypeKind.DEPENDENT)
# What is said to people, and never decided on.
MESSAGE = re.compile(r"(?:Error|StrCat|StrAppend|StrFormat|StrJoin|Malformed|InvalidField|Mismatch)$")
# In whose arguments the order means nothing, whether they stand alone or in braces.
COMMUTATIVE = ("min", "max", "swap", "gcd", "lcm")
# Room that a container would find by itself, and marks of coverage, which are a test's and no part of what a core does:
# sim_test's table misses one that is gone.
WITHOUT_EFFECT = re.compile(r"(?:.*(?:\.|->)(?:reserve|shrink_to_fit)\(|Covered<)", re.DOTALL)
# The same, all that an `if` decides on.
ONLY_COVERED = re.compile(r"\{?\s*Covered<[^;{}]*\(\)\s*;?\s*\}?")
ITERATORS = re.compile(r"\b(?:begin|end)\(\)$")
TEXT_TYPES = re.compile(r"^(?:const )?(?:char \*|std::(?:__cxx11::)?(?:basic_)?string|absl::string_view)")
SHIFTED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
EQUALITY = {"==": "!=", "!=": "=="}
CHANGED = {"+": "-", "-": "+", "*": "/", "/": "*", "<<": ">>", ">>": "<<", "+=": "-=", "-=": "+="}


def find(path, source, flags):
    """(mutations, calls) of the source file `path`, a relative path from the working directory.

    `calls` is {function: (whether its declaration is private to a .cc or header of this folder, functions it calls)}
    by the functions' USRs; what_only_checks_call needs those of all files."""
    unit = Index.create().parse(path, args=["-x", "c++", *flags],
                                options=TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD)
    errors = [str(d) for d in unit.diagnostics if d.severity >= 3]
    if errors:
        raise ValueError(f"{path} does not parse: {errors[0]}")
    walker = _Walker(path, source, unit)
    for cursor in unit.cursor.get_children():
        if cursor.location.file is not None and cursor.location.file.name == path:
            walker.declaration(cursor)
    return walker.found, walker.calls


class _Walker:
    def __init__(self, path, source, unit):
        self.path, self.source = path, source
        self.found = []  # (USR of the function, Mutation)
        self.calls = {}
        self._function, self._usr = "", ""
        self._seen = set()
        self._unordered = set()  # Extents of braces in which the order means nothing.
        self._macros = [(c.extent.start.offset, c.extent.end.offset, c.spelling) for c in unit.cursor.get_children()
                        if c.kind == Kind.MACRO_INSTANTIATION and c.location.file is not None
                        and c.location.file.name == path]

    # ---- Text ----

    def extent(self, node):
        return node.extent.start.offset, node.extent.end.offset

    def text(self, node):
        begin, end = self.extent(node)
        return self.source[begin:end].decode()

    def macro(self, node):
        """The name of the macro that the node begins in, if any."""
        begin = node.extent.start.offset
        return next((name for first, last, name in self._macros if first <= begin < last), None)

    def plain(self, node):
        """Stands in this file as it is written."""
        begin, end = self.extent(node)
        file = node.extent.start.file
        return (file is not None and file.name == self.path and begin < end and
                not any(first < end and begin < last for first, last, name in self._macros
                        if not self._contains(node, first, last)))

    def _contains(self, node, first, last):
        """A macro within the node is no obstacle to what is done with the node as a whole."""
        begin, end = self.extent(node)
        return begin <= first and last <= end and (begin, end) != (first, last)

    def add(self, kind, begin, end, text):
        if (begin, end, text) in self._seen or self.source[begin:end].decode() == text:
            return
        self._seen.add((begin, end, text))
        self.found.append((self._usr, Mutation(self.path, begin, end, text, kind, self._function)))

    def replace(self, kind, node, text):
        self.add(kind, *self.extent(node), text)

    # ---- Declarations ----

    def declaration(self, node):
        if node.kind in FUNCTIONS and node.is_definition():
            body = next((c for c in node.get_children() if c.kind == Kind.COMPOUND_STMT), None)
            if body is not None and not TEXT_TYPES.match(node.result_type.get_canonical().spelling):
                self._within(node, lambda: self.statement(body, last=True))
        elif node.kind in SCOPES:
            for child in node.get_children():
                self.declaration(child)
        elif node.kind == Kind.VAR_DECL:
            self._function = ""
            for child in node.get_children():
                if child.kind.is_expression():
                    self.expression(child)

    def _within(self, node, walk):
        parent = node.semantic_parent.spelling
        self._function = f"{parent}::{node.spelling}" if parent and node.kind != Kind.FUNCTION_DECL else node.spelling
        self._usr = node.get_usr()
        declared = node.canonical.location.file.name
        called = {c.referenced.get_usr() for c in node.walk_preorder()
                  if c.kind in (Kind.CALL_EXPR, Kind.DECL_REF_EXPR, Kind.MEMBER_REF_EXPR) and c.referenced is not None}
        self.calls[self._usr] = (declared, sorted(called - {self._usr, ""}))
        walk()
        self._function, self._usr = "", ""

    # ---- Statements ----

    def statement(self, node, last=False):
        """`last`: nothing of the function comes after it, so that its return can't be dropped."""
        kind = node.kind
        if kind == Kind.COMPOUND_STMT:
            children = list(node.get_children())
            for child in children:
                self.statement(child, last and child == children[-1])
        elif self.macro(node) is not None:
            if self.macro(node) == "BATON_RETURN_IF_ERROR":
                begin = node.extent.start.offset
                end = next(end for first, end, _ in self._macros if first == begin)
                self.add("dropped statement", begin, end, "")
        elif kind in (Kind.IF_STMT, Kind.WHILE_STMT, Kind.SWITCH_STMT):
            self._branch(node, last)
        elif kind in (Kind.FOR_STMT, Kind.CXX_FOR_RANGE_STMT):
            self._loop(node)
        elif kind in (Kind.CASE_STMT, Kind.DEFAULT_STMT):
            self.statement(list(node.get_children())[-1], last)
        elif kind == Kind.DECL_STMT:
            self._variables(node)
        elif kind == Kind.RETURN_STMT:
            self._return(node, last)
        elif kind in (Kind.BREAK_STMT, Kind.CONTINUE_STMT):
            self.replace("dropped statement", node, "")
            self.replace("changed jump", node, "break" if kind == Kind.CONTINUE_STMT else "continue")
        elif kind.is_expression():
            if kind == Kind.CALL_EXPR and WITHOUT_EFFECT.match(self.text(node)):
                return
            if self.plain(node):
                self.replace("dropped statement", node, "")
            self.expression(node)
        elif kind == Kind.DO_STMT:
            for child in node.get_children():
                (self.expression if child.kind.is_expression() else self.statement)(child)

    def _variables(self, node):
        for variable in node.get_children():
            for child in variable.get_children() if variable.kind == Kind.VAR_DECL else ():
                if child.kind.is_expression():
                    if variable.type.get_canonical().kind == TypeKind.BOOL:
                        self.negate(child)
                    self.expression(child)

    def _return(self, node, last):
        if not last:
            self.replace("dropped statement", node, "")
        for child in node.get_children():
            if child.type.get_canonical().kind == TypeKind.BOOL:
                self.negate(child)
            self.expression(child)

    def _branch(self, node, last):
        begin, end, _ = parentheses(self.source, node.extent.start.offset)
        heads = [c for c in node.get_children() if c.extent.end.offset <= end]
        branches = [c for c in node.get_children() if c.extent.start.offset > end]
        condition = next((c for c in reversed(heads) if c.kind.is_expression()), None)
        variable = next((c for c in heads if c is not condition and c.kind in (Kind.DECL_STMT, Kind.VAR_DECL)), None)
        if node.kind == Kind.IF_STMT and all(ONLY_COVERED.fullmatch(self.text(branch)) for branch in branches):
            return
        if variable is not None:
            self._head_variable(node, variable, begin, end)
        if condition is not None and (variable is None or self._after(condition, variable)):
            if node.kind != Kind.SWITCH_STMT:
                self.negate(condition)
            self.expression(condition)
            then = branches[0] if branches else None
            if node.kind == Kind.IF_STMT and len(branches) == 1 and self._several(then) and self.plain(condition):
                self.replace("dropped statement", condition, "false")
        for branch in branches:
            self.statement(branch, last and node.kind != Kind.WHILE_STMT)

    @staticmethod
    def _after(condition, variable):
        return condition.extent.start.offset >= variable.extent.end.offset

    def _head_variable(self, node, variable, begin, end):
        """`if (T* t = F())` and `if (auto t = F(); t->ok())`."""
        declared = variable if variable.kind == Kind.VAR_DECL else next(variable.get_children(), None)
        if declared is None or declared.kind != Kind.VAR_DECL:
            return
        for child in declared.get_children():
            if child.kind.is_expression():
                self.expression(child)
        head = self.source[begin:end].decode()
        if ";" not in head and node.kind == Kind.IF_STMT:
            self.add("negated condition", begin, end, f"{head}; !({declared.spelling})")

    @staticmethod
    def _several(then):
        return then is not None and then.kind == Kind.COMPOUND_STMT and len(list(then.get_children())) > 1

    def _loop(self, node):
        begin, end, semicolons = parentheses(self.source, node.extent.start.offset)
        for child in node.get_children():
            first, last = self.extent(child)
            if first > end:
                if self._several(child):
                    self.replace("dropped statement", node, "")
                self.statement(child)
            elif len(semicolons) > 1 and first > semicolons[1]:
                continue  # A loop that does not advance is a matter for a timeout, not for a test.
            elif child.kind == Kind.DECL_STMT:
                self._variables(child)
            elif child.kind.is_expression() and begin <= first and last <= end:
                self.expression(child)

    # ---- Expressions ----

    def peel(self, node):
        """Without the implicit nodes around it."""
        while node.kind == Kind.UNEXPOSED_EXPR:
            children = list(node.get_children())
            if len(children) != 1 or self.extent(children[0]) != self.extent(node):
                break
            node = children[0]
        return node

    def operator(self, node):
        """(token, left, right) of a binary operator, built in or a class's; its place is self._between's."""
        operands = list(node.get_children())
        if node.kind == Kind.CALL_EXPR and node.spelling.startswith("operator"):
            operands = list(node.get_arguments())
        elif node.kind not in (Kind.BINARY_OPERATOR, Kind.COMPOUND_ASSIGNMENT_OPERATOR):
            return None, None, None
        if len(operands) != 2:
            return None, None, None
        token = without_comments(self.source[operands[0].extent.end.offset:operands[1].extent.start.offset])
        return token.decode().strip(), *operands

    @staticmethod
    def _rewritten(node):
        """The `a == b` that C++20 makes `a != b` of; `node` itself if it is none."""
        while node.kind in (Kind.UNEXPOSED_EXPR, Kind.UNARY_OPERATOR):
            children = list(node.get_children())
            if len(children) != 1:
                break
            node = children[0]
        return node

    def negate(self, node):
        inner = self.peel(node)
        operator, _, _ = self.operator(self._rewritten(inner))
        turned = operator in EQUALITY or operator in ("=", "+=", "-=") or self.text(inner).startswith("!")
        if turned or inner.kind == Kind.CXX_BOOL_LITERAL_EXPR or not self.plain(inner):
            return
        self.replace("negated condition", inner, f"!({self.text(inner)})")

    def expression(self, node):
        if not node.kind.is_expression() and node.kind not in (Kind.COMPOUND_STMT, Kind.VAR_DECL):
            return
        if node.kind == Kind.COMPOUND_STMT:  # Of a lambda.
            return self.statement(node, last=True)
        if self.macro(node) is not None or node.kind == Kind.CXX_UNARY_EXPR:
            return None
        if node.kind == Kind.CALL_EXPR and MESSAGE.search(node.spelling):
            return None
        if not self.plain(node):
            return None
        operator, left, right = self.operator(node)
        if operator:
            return self._binary(node, operator, left, right)
        self._leaf(node)
        if node.kind == Kind.CALL_EXPR:
            self._call(node)
        elif node.kind == Kind.INIT_LIST_EXPR and self.extent(node) not in self._unordered:
            self._swaps(list(node.get_children()))
        elif node.kind == Kind.CONDITIONAL_OPERATOR:
            return self._ternary(node)
        for child in node.get_children():
            self.expression(child)
        return None

    def _ternary(self, node):
        condition, *branches = node.get_children()
        self.negate(condition)
        self.expression(condition)
        for branch in branches:
            self.expression(branch)

    def _binary(self, node, operator, left, right):
        begin, end = left.extent.end.offset, right.extent.start.offset
        gap = self.source[begin:end].decode()
        if operator in ("&&", "||"):
            return self._junction(node, operator, left, right)
        if operator in SHIFTED:
            self.add("shifted bound", begin, end, gap.replace(operator, SHIFTED[operator]))
        elif operator in EQUALITY:
            self.add("negated condition", begin, end, gap.replace(operator, EQUALITY[operator]))
        elif operator in CHANGED and left.type.get_canonical().kind in ARITHMETIC:
            self.add("changed operator", begin, end, gap.replace(operator, CHANGED[operator]))
        elif operator == "=" and left.type.get_canonical().kind == TypeKind.BOOL:
            self.negate(right)
        self.expression(left)
        self.expression(right)
        return None

    def _junction(self, node, operator, left, right):
        if self.operator(self.peel(left))[0] != operator:
            self.replace("dropped condition", node, self.text(right))
        self.replace("dropped condition", node, self.text(left))
        for operand in (left, right):
            if self.operator(self.peel(operand))[0] != operator:
                self.negate(operand)
            self.expression(operand)

    def _leaf(self, node):
        text = self.text(node)
        if node.kind == Kind.INTEGER_LITERAL:
            for other in other_integers(text):
                self.replace("changed constant", node, other)
        elif node.kind == Kind.CXX_BOOL_LITERAL_EXPR:
            self.replace("changed constant", node, "false" if text == "true" else "true")
        elif node.kind == Kind.UNARY_OPERATOR:
            self._unary(node, text)
        elif node.kind == Kind.DECL_REF_EXPR and node.referenced is not None \
                and node.referenced.kind == Kind.ENUM_CONSTANT_DECL:
            values = [c.spelling for c in node.referenced.semantic_parent.get_children()
                      if c.kind == Kind.ENUM_CONSTANT_DECL]
            at = values.index(node.referenced.spelling)
            for other in {values[at - 1], values[(at + 1) % len(values)]} - {values[at]}:
                self.replace("changed constant", node, text[:len(text) - len(values[at])] + other)

    def _unary(self, node, text):
        operand = self.text(next(node.get_children()))
        if text.startswith("!") and not text.startswith("!="):  # That one is a rewritten operator's.
            self.replace("negated condition", node, operand)
        elif text.startswith(("++", "--")):
            self.replace("changed operator", node, ("--" if text.startswith("++") else "++") + operand)
        elif text.startswith("-"):
            self.replace("changed operator", node, operand)

    def _call(self, node):
        arguments = list(node.get_arguments())
        if node.spelling in COMMUTATIVE:
            self._unordered.update(self.extent(argument) for argument in arguments)
        if node.spelling in ("min", "max"):
            # With its namespace before it and perhaps template arguments after it.
            end = arguments[0].extent.start.offset if arguments else node.extent.end.offset
            at = self.source.rfind(node.spelling.encode(), node.extent.start.offset, end)
            if at >= 0:
                self.add("changed operator", at, at + 3, "max" if node.spelling == "min" else "min")
        elif node.spelling not in COMMUTATIVE and not node.spelling.startswith("operator"):
            self._swaps(arguments)

    def _swaps(self, arguments):
        for one, two in zip(arguments, arguments[1:]):
            if not self.plain(one) or not self.plain(two) or self.text(one) == self.text(two):
                continue
            # Texts for people, and ranges that would be undefined behaviour.
            texts = [self.text(node) for node in (one, two)]
            if any(re.match(r'(?:std::pair\()?"|absl::StrCat', text) or ITERATORS.search(text) for text in texts):
                continue
            begin, end = one.extent.end.offset, two.extent.start.offset
            if self.source[begin:end].strip() != b"," or not self._alike(one.type, two.type):
                continue
            gap = self.source[begin:end].decode()
            self.add("swapped argument", one.extent.start.offset, two.extent.end.offset,
                     self.text(two) + gap + self.text(one))

    @staticmethod
    def _alike(one, two):
        one, two = one.get_canonical(), two.get_canonical()
        if one.kind in INTEGERS and two.kind in INTEGERS:
            return True
        return one.spelling.removeprefix("const ") == two.spelling.removeprefix("const ") and bool(one.spelling)


def what_only_checks_call(calls, private):
    """The functions, by USR, that are CheckInvariants or are called by such functions alone.

    `calls` merges find's of all files; `private(path)` says whether nobody outside of the folder includes a file: a
    public function may have callers that are not mutated."""
    callers = {}
    for caller, (_, called) in calls.items():
        for function in called:
            callers.setdefault(function, set()).add(caller)
    checks = {usr for usr in calls if re.search(r"@F@CheckInvariants#", usr)}
    while True:
        more = {usr for usr, (declared, _) in calls.items()
                if usr not in checks and private(declared) and callers.get(usr) and callers[usr] <= checks}
        if not more:
            return checks
        checks |= more
