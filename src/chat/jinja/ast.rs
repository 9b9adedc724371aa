//! The tree of a template. Chains of operators, links and branches are lists, so that the depth of
//! a tree is the nesting of its source, which the parser limits.

/// A statement and its line.
#[derive(Clone, Debug)]
pub(super) struct Statement {
    pub(super) line: u32,
    pub(super) kind: Kind,
}

/// A sequence of statements.
pub(super) type Body = Vec<Statement>;

/// A statement.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    Data(Box<str>),
    Output(Expr),
    If {
        branches: Vec<(Expr, Body)>,
        otherwise: Body,
    },
    For(Box<For>),
    Set(Target, Expr),
    SetBlock {
        target: Target,
        filters: Vec<Link>,
        body: Body,
    },
    With {
        assigned: Vec<(Target, Expr)>,
        body: Body,
    },
    Macro(Box<Macro>),
    Call {
        call: Expr,
        caller: Box<Macro>,
    },
    Filter {
        filters: Vec<Link>,
        body: Body,
    },
    /// A body in a scope of its own: `{% generation %}`, and `{% block %}`, whose scope is the
    /// template's where it is not `scoped`.
    Scope {
        body: Body,
        from_root: bool,
    },
    Do(Expr),
    Break,
    Continue,
}

/// A loop.
#[derive(Clone, Debug)]
pub(super) struct For {
    pub(super) target: Target,
    pub(super) over: Expr,
    pub(super) test: Option<Expr>,
    pub(super) recursive: bool,
    pub(super) body: Body,
    pub(super) otherwise: Body,
}

/// A macro, or the body of `{% call %}`.
#[derive(Clone, Debug)]
pub(super) struct Macro {
    pub(super) name: Box<str>,
    /// Parameters, with their defaults.
    pub(super) parameters: Vec<(Box<str>, Option<Expr>)>,
    pub(super) body: Body,
    /// True if the body names `varargs`, and takes more arguments than it has parameters.
    pub(super) takes_varargs: bool,
    /// True if the body names `kwargs`.
    pub(super) takes_kwargs: bool,
}

/// A place that takes a value.
#[derive(Clone, Debug)]
pub(super) enum Target {
    Name(Box<str>),
    /// A member of a namespace.
    Member(Box<str>, Box<str>),
    Several(Vec<Target>),
}

/// An expression.
#[derive(Clone, Debug)]
pub(super) enum Expr {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Box<str>),
    Name(Box<str>),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Negative(Box<Expr>),
    Positive(Box<Expr>),
    Not(Box<Expr>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    /// Texts joined by `~`.
    Concat(Vec<Expr>),
    /// Operators of one precedence, from the left.
    Arithmetic(Box<Expr>, Vec<(Operator, Expr)>),
    Compare(Box<Expr>, Vec<(Comparison, Expr)>),
    Conditional(Box<(Expr, Expr, Option<Expr>)>),
    /// An expression and what follows it.
    Chain(Box<Expr>, Vec<Link>),
}

/// A link of a chain.
#[derive(Clone, Debug)]
pub(super) enum Link {
    Attribute(Box<str>),
    Item(Expr),
    Slice(Box<[Option<Expr>; 3]>),
    Call(Arguments),
    Filter(Box<str>, Arguments),
    Test { name: Box<str>, arguments: Arguments, negated: bool },
}

/// Arguments of a call.
#[derive(Clone, Debug, Default)]
pub(super) struct Arguments {
    pub(super) positional: Vec<Expr>,
    pub(super) named: Vec<(Box<str>, Expr)>,
    /// `*list`.
    pub(super) splat: Option<Expr>,
    /// `**dict`.
    pub(super) named_splat: Option<Expr>,
}

/// An operator of two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Mod,
    Pow,
}

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}
