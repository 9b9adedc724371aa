//! Puts a toll on what the engine does for free.
//!
//! The engine counts steps, and the data that they make. What it does not count can be made
//! exponentially large by a few steps that repeat one value inside itself: lists joined by `+`,
//! lists made into text by `~`, filters or methods, and values compared. A template is therefore
//! rewritten before it is compiled: those operators become calls of functions that count, and what
//! the others work on goes through one. Joining lists at the time of compiling ends with that too,
//! since the engine folds operators of constants, but not calls.
//!
//! The functions' names are none that a template can write: it cannot put its own in their place.

use minijinja::machinery::ast::{
    self, BinOp, BinOpKind, Call, CallArg, Compare, CompareOp, Expr, Filter, Spanned, Stmt, Test,
    UnaryOpKind, Var,
};

/// The function that adds two values.
pub(super) const ADD: &str = "+";
/// The function that joins two values as texts.
pub(super) const CONCAT: &str = "~";
/// The function that gives back its argument, a step for every value in it.
pub(super) const TOLL: &str = "#";

/// Filters that look at no more than the engine counts, and are asked often.
const FREE_FILTERS: [&str; 9] =
    ["length", "count", "first", "last", "default", "d", "tojson", "trim", "list"];

/// The template with its tolls.
pub(super) fn stmt<'a>(statement: &Stmt<'a>) -> Stmt<'a> {
    match statement {
        Stmt::Template(s) => Stmt::Template(at(s, ast::Template { children: body(&s.children) })),
        Stmt::EmitExpr(s) => Stmt::EmitExpr(at(s, ast::EmitExpr { expr: expr(&s.expr) })),
        Stmt::EmitRaw(s) => Stmt::EmitRaw(at(s, ast::EmitRaw { raw: s.raw })),
        Stmt::ForLoop(s) => Stmt::ForLoop(at(s, for_loop(s))),
        Stmt::IfCond(s) => {
            let (true_body, false_body) = (body(&s.true_body), body(&s.false_body));
            Stmt::IfCond(at(s, ast::IfCond { expr: expr(&s.expr), true_body, false_body }))
        }
        Stmt::WithBlock(s) => {
            let pairs = s.assignments.iter().map(|(to, from)| (expr(to), expr(from)));
            let assignments = pairs.collect();
            Stmt::WithBlock(at(s, ast::WithBlock { assignments, body: body(&s.body) }))
        }
        Stmt::Set(s) => Stmt::Set(at(s, ast::Set { target: expr(&s.target), expr: expr(&s.expr) })),
        Stmt::SetBlock(s) => {
            let (target, filter) = (expr(&s.target), s.filter.as_ref().map(expr));
            Stmt::SetBlock(at(s, ast::SetBlock { target, filter, body: body(&s.body) }))
        }
        Stmt::AutoEscape(s) => {
            let enabled = expr(&s.enabled);
            Stmt::AutoEscape(at(s, ast::AutoEscape { enabled, body: body(&s.body) }))
        }
        Stmt::FilterBlock(s) => {
            let (filter, filter_span) = (expr(&s.filter), s.filter_span);
            Stmt::FilterBlock(at(s, ast::FilterBlock { filter, filter_span, body: body(&s.body) }))
        }
        Stmt::Macro(s) => Stmt::Macro(at(s, macro_of(s))),
        Stmt::CallBlock(s) => {
            let macro_decl = at(&s.macro_decl, macro_of(&s.macro_decl));
            let (call, call_expr_span) = (at(&s.call, call(&s.call)), s.call_expr_span);
            Stmt::CallBlock(at(s, ast::CallBlock { call, call_expr_span, macro_decl }))
        }
        Stmt::Continue(s) => Stmt::Continue(at(s, ast::Continue)),
        Stmt::Break(s) => Stmt::Break(at(s, ast::Break)),
        Stmt::Do(s) => Stmt::Do(at(s, ast::Do { call: at(&s.call, call(&s.call)) })),
    }
}

fn at<T, U>(place: &Spanned<T>, node: U) -> Spanned<U> {
    Spanned::new(node, place.span())
}

fn body<'a>(statements: &[Stmt<'a>]) -> Vec<Stmt<'a>> {
    statements.iter().map(stmt).collect()
}

fn for_loop<'a>(s: &ast::ForLoop<'a>) -> ast::ForLoop<'a> {
    ast::ForLoop {
        target: expr(&s.target),
        iter: expr(&s.iter),
        filter_expr: s.filter_expr.as_ref().map(expr),
        recursive: s.recursive,
        body: body(&s.body),
        else_body: body(&s.else_body),
    }
}

fn macro_of<'a>(s: &ast::Macro<'a>) -> ast::Macro<'a> {
    ast::Macro {
        name: s.name,
        args: exprs(&s.args),
        defaults: exprs(&s.defaults),
        body: body(&s.body),
    }
}

fn exprs<'a>(expressions: &[Expr<'a>]) -> Vec<Expr<'a>> {
    expressions.iter().map(expr).collect()
}

/// The expression with its tolls.
fn expr<'a>(expression: &Expr<'a>) -> Expr<'a> {
    match expression {
        Expr::Var(e) => Expr::Var(at(e, Var { id: e.id })),
        Expr::Const(e) => Expr::Const(at(e, ast::Const { value: e.value.clone() })),
        Expr::Slice(e) => {
            let [start, stop, step] = [&e.start, &e.stop, &e.step].map(|e| e.as_ref().map(expr));
            Expr::Slice(at(e, ast::Slice { expr: expr(&e.expr), start, stop, step }))
        }
        Expr::UnaryOp(e) => {
            // The kind cannot be copied.
            let op =
                if matches!(e.op, UnaryOpKind::Not) { UnaryOpKind::Not } else { UnaryOpKind::Neg };
            Expr::UnaryOp(at(e, ast::UnaryOp { op, expr: expr(&e.expr) }))
        }
        Expr::BinOp(e) => bin_op(e),
        Expr::Compare(e) => {
            let ops = e.ops.iter().map(|op| CompareOp { op: op.op, expr: tolled(&op.expr) });
            Expr::Compare(at(e, Compare { expr: tolled(&e.expr), ops: ops.collect() }))
        }
        Expr::IfExpr(e) => Expr::IfExpr(at(
            e,
            ast::IfExpr {
                test_expr: expr(&e.test_expr),
                true_expr: expr(&e.true_expr),
                false_expr: e.false_expr.as_ref().map(expr),
            },
        )),
        Expr::Filter(e) => {
            let on = if FREE_FILTERS.contains(&e.name) { expr } else { tolled };
            let (value, args) = (e.expr.as_ref().map(on), call_args(&e.args, on));
            Expr::Filter(at(e, Filter { name: e.name, expr: value, args }))
        }
        Expr::Test(e) => {
            let args = call_args(&e.args, tolled);
            Expr::Test(at(e, Test { name: e.name, expr: expr(&e.expr), args }))
        }
        Expr::GetAttr(e) => {
            Expr::GetAttr(at(e, ast::GetAttr { expr: expr(&e.expr), name: e.name }))
        }
        Expr::GetItem(e) => {
            let subscript_expr = expr(&e.subscript_expr);
            Expr::GetItem(at(e, ast::GetItem { expr: expr(&e.expr), subscript_expr }))
        }
        Expr::Call(e) => Expr::Call(at(e, call(e))),
        Expr::List(e) => Expr::List(at(e, ast::List { items: exprs(&e.items) })),
        Expr::Tuple(e) => Expr::Tuple(at(e, ast::Tuple { items: exprs(&e.items) })),
        Expr::Map(e) => {
            Expr::Map(at(e, ast::Map { keys: exprs(&e.keys), values: exprs(&e.values) }))
        }
    }
}

fn bin_op<'a>(e: &Spanned<BinOp<'a>>) -> Expr<'a> {
    let function = match e.op {
        BinOpKind::Add => ADD,
        BinOpKind::Concat => CONCAT,
        BinOpKind::Eq
        | BinOpKind::Ne
        | BinOpKind::Lt
        | BinOpKind::Lte
        | BinOpKind::Gt
        | BinOpKind::Gte
        | BinOpKind::In => {
            let (left, right) = (tolled(&e.left), tolled(&e.right));
            return Expr::BinOp(at(e, BinOp { op: e.op, left, right }));
        }
        _ => {
            let (left, right) = (expr(&e.left), expr(&e.right));
            return Expr::BinOp(at(e, BinOp { op: e.op, left, right }));
        }
    };
    let args = vec![CallArg::Pos(expr(&e.left)), CallArg::Pos(expr(&e.right))];
    let name = Expr::Var(at(e, Var { id: function }));
    Expr::Call(at(e, Call { expr: name, args }))
}

fn call<'a>(e: &Call<'a>) -> Call<'a> {
    // Methods make texts of what they are given; functions and macros take it as it is.
    let on = if matches!(e.expr, Expr::GetAttr(_)) { tolled } else { expr };
    Call { expr: expr(&e.expr), args: call_args(&e.args, on) }
}

fn call_args<'a>(args: &[CallArg<'a>], on: fn(&Expr<'a>) -> Expr<'a>) -> Vec<CallArg<'a>> {
    let each = args.iter().map(|arg| match arg {
        CallArg::Pos(e) => CallArg::Pos(on(e)),
        CallArg::Kwarg(name, e) => CallArg::Kwarg(name, on(e)),
        CallArg::PosSplat(e) => CallArg::PosSplat(on(e)),
        CallArg::KwargSplat(e) => CallArg::KwargSplat(on(e)),
    });
    each.collect()
}

/// The expression's value after its toll; a constant costs nothing.
fn tolled<'a>(expression: &Expr<'a>) -> Expr<'a> {
    let value = expr(expression);
    if matches!(value, Expr::Const(_)) {
        return value;
    }
    let span = expression.span();
    let name = Expr::Var(Spanned::new(Var { id: TOLL }, span));
    Expr::Call(Spanned::new(Call { expr: name, args: vec![CallArg::Pos(value)] }, span))
}
