//! Runs the statements of a template.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use serde_json::Value as Json;

use super::ast::{Body, For, Kind, Macro, Statement, Target};
use super::meter::{Buffer, Held, Limits, Meter};
use super::value::{Function, List, Loop, Maker, Object, Value};
use super::{Fault, Outcome};

/// Deepest nesting of what runs: calls, loops and expressions inside of one another. Python's own
/// limit of recursion allows less.
const NESTING_MAX: usize = 1000;

/// Bytes of a scope, and of a variable in it.
const SCOPE_BYTES: usize = 128;

/// Functions that every template has.
const FUNCTIONS: [(&str, Function); 7] = [
    ("range", Function::Range),
    ("dict", Function::Dict),
    ("namespace", Function::Namespace),
    ("cycler", Function::Cycler),
    ("joiner", Function::Joiner),
    ("raise_exception", Function::RaiseException),
    ("strftime_now", Function::StrftimeNow),
];

/// Variables, and those around them.
#[derive(Debug)]
pub(super) struct Scope<'a> {
    variables: RefCell<HashMap<&'a str, Value<'a>>>,
    held: RefCell<Held<'a>>,
    parent: Option<Rc<Scope<'a>>>,
}

impl<'a> Scope<'a> {
    fn get(&self, name: &str) -> Option<Value<'a>> {
        let mut scope = self;
        loop {
            if let Some(value) = scope.variables.borrow().get(name) {
                return Some(value.clone());
            }
            scope = scope.parent.as_deref()?;
        }
    }

    pub(super) fn set(&self, name: &'a str, value: Value<'a>) -> Outcome<()> {
        if self.variables.borrow_mut().insert(name, value).is_none() {
            self.held.borrow_mut().grow(SCOPE_BYTES)?;
        }
        Ok(())
    }
}

/// How a statement ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Next,
    Break,
    Continue,
}

/// The state of a rendering.
#[derive(Debug)]
pub(super) struct Interpreter<'a> {
    pub(super) make: Maker<'a>,
    root: Rc<Scope<'a>>,
    /// What may refer to itself: it is taken apart when the rendering ends.
    scopes: Vec<Rc<Scope<'a>>>,
    namespaces: Vec<Rc<Object<'a>>>,
    nesting: usize,
    line: u32,
}

/// Runs a template.
pub(super) fn run<'a>(
    body: &'a [Statement],
    variables: &'a [(&'a str, &'a Json)],
    limits: Limits<'a>,
) -> Result<String, (usize, Fault)> {
    let meter = Meter::new(limits);
    let started = Interpreter::new(&meter, variables).and_then(|i| Ok((i, Buffer::new(&meter)?)));
    let (mut interpreter, mut out) = started.map_err(|fault| (0, fault))?;
    let root = Rc::clone(&interpreter.root);
    let ended = interpreter.statements(body, &root, &mut out);
    interpreter.take_apart();
    match ended {
        Ok(_) => Ok(out.into_parts().0),
        Err(fault) => Err((interpreter.line as usize, fault)),
    }
}

impl<'a> Interpreter<'a> {
    fn new(meter: &Rc<Meter<'a>>, variables: &'a [(&'a str, &'a Json)]) -> Outcome<Self> {
        let make = Maker(Rc::clone(meter));
        let held = RefCell::new(meter.hold(SCOPE_BYTES)?);
        let root = Rc::new(Scope { variables: RefCell::default(), held, parent: None });
        for (name, function) in FUNCTIONS {
            root.set(name, make.object(Object::Function(function))?)?;
        }
        for (name, json) in variables {
            root.set(name, make.json(json)?)?;
        }
        let (scopes, namespaces) = (Vec::new(), Vec::new());
        Ok(Self { make, root, scopes, namespaces, nesting: 0, line: 0 })
    }

    /// Frees what may refer to itself, one after the other: none frees another in turn.
    fn take_apart(&mut self) {
        for namespace in &self.namespaces {
            if let Object::Namespace(members) = &**namespace {
                let members = std::mem::take(&mut *members.borrow_mut());
                drop(members);
            }
        }
        self.scopes.push(Rc::clone(&self.root));
        for scope in &self.scopes {
            let variables = std::mem::take(&mut *scope.variables.borrow_mut());
            drop(variables);
        }
    }

    pub(super) fn keep_namespace(&mut self, namespace: &Rc<Object<'a>>) {
        self.namespaces.push(Rc::clone(namespace));
    }

    pub(super) fn child(&self, parent: &Rc<Scope<'a>>) -> Outcome<Rc<Scope<'a>>> {
        let held = RefCell::new(self.make.0.hold(SCOPE_BYTES)?);
        Ok(Rc::new(Scope { variables: RefCell::default(), held, parent: Some(Rc::clone(parent)) }))
    }

    pub(super) fn lookup(&self, scope: &Scope<'a>, name: &str) -> Value<'a> {
        scope.get(name).unwrap_or(Value::Undefined)
    }

    /// Runs something inside of something else.
    pub(super) fn nested<T>(&mut self, run: impl FnOnce(&mut Self) -> Outcome<T>) -> Outcome<T> {
        self.make.0.steps(1)?;
        self.nesting += 1;
        if self.nesting > NESTING_MAX {
            return Err(Fault::new(format_args!("nested deeper than {NESTING_MAX}")));
        }
        let result = run(self)?;
        self.nesting -= 1;
        Ok(result)
    }

    pub(super) fn statements(
        &mut self,
        body: &'a [Statement],
        scope: &Rc<Scope<'a>>,
        out: &mut Buffer<'a>,
    ) -> Outcome<Flow> {
        for statement in body {
            self.line = statement.line;
            let flow = self.nested(|i| i.statement(&statement.kind, scope, out))?;
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn statement(
        &mut self,
        kind: &'a Kind,
        scope: &Rc<Scope<'a>>,
        out: &mut Buffer<'a>,
    ) -> Outcome<Flow> {
        match kind {
            Kind::Data(text) => out.push(text)?,
            Kind::Output(shown) => {
                let value = self.expr(shown, scope)?;
                self.make.write(out, &value)?;
            }
            Kind::If { branches, otherwise } => {
                for (test, body) in branches {
                    if self.expr(test, scope)?.is_true() {
                        return self.statements(body, scope, out);
                    }
                }
                return self.statements(otherwise, scope, out);
            }
            Kind::For(inner) => {
                let over = self.expr(&inner.over, scope)?;
                self.for_loop(inner, &over, 0, scope, out)?;
            }
            Kind::Set(target, value) => {
                let value = self.expr(value, scope)?;
                self.assign(target, value, scope)?;
            }
            Kind::SetBlock { target, filters, body } => {
                let mut value = self.captured(body, scope)?;
                for filter in filters {
                    value = self.link(value, filter, scope)?;
                }
                self.assign(target, value, scope)?;
            }
            Kind::With { assigned, body } => {
                let inner = self.child(scope)?;
                for (target, value) in assigned {
                    let value = self.expr(value, scope)?;
                    self.assign(target, value, &inner)?;
                }
                return self.statements(body, &inner, out);
            }
            Kind::Macro(inner) => {
                let value = self.macro_value(inner, scope)?;
                scope.set(&inner.name, value)?;
            }
            Kind::Call { call, caller } => {
                let caller = self.macro_value(caller, scope)?;
                let value = self.call_with_caller(call, caller, scope)?;
                self.make.write(out, &value)?;
            }
            Kind::Filter { filters, body } => {
                let mut value = self.captured(body, scope)?;
                for filter in filters {
                    value = self.link(value, filter, scope)?;
                }
                self.make.write(out, &value)?;
            }
            Kind::Scope { body, from_root } => {
                let root = Rc::clone(&self.root);
                let inner = self.child(if *from_root { &root } else { scope })?;
                return self.statements(body, &inner, out);
            }
            Kind::Do(value) => drop(self.expr(value, scope)?),
            Kind::Break => return Ok(Flow::Break),
            Kind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    /// The text that a body writes.
    fn captured(&mut self, body: &'a Body, scope: &Rc<Scope<'a>>) -> Outcome<Value<'a>> {
        let inner = self.child(scope)?;
        let mut out = self.make.buffer()?;
        self.statements(body, &inner, &mut out)?;
        self.make.built(out)
    }

    fn macro_value(&mut self, inner: &'a Macro, scope: &Rc<Scope<'a>>) -> Outcome<Value<'a>> {
        self.scopes.push(Rc::clone(scope));
        self.make.object(Object::Macro(inner, Rc::clone(scope)))
    }

    pub(super) fn assign(
        &mut self,
        target: &'a Target,
        value: Value<'a>,
        scope: &Rc<Scope<'a>>,
    ) -> Outcome<()> {
        match target {
            Target::Name(name) => scope.set(name, value),
            Target::Member(name, member) => self.assign_member(name, member, value, scope),
            Target::Several(targets) => {
                let values = self.make.items(&value)?;
                let (wanted, found) = (targets.len(), values.items().len());
                if wanted != found {
                    let detail = format_args!("{found} values where {wanted} are wanted");
                    return Err(Fault::new(detail));
                }
                for (target, value) in targets.iter().zip(values.items()) {
                    self.assign(target, value.clone(), scope)?;
                }
                Ok(())
            }
        }
    }

    fn assign_member(
        &mut self,
        name: &str,
        member: &str,
        value: Value<'a>,
        scope: &Rc<Scope<'a>>,
    ) -> Outcome<()> {
        let owner = self.lookup(scope, name);
        let Value::Object(object) = &owner else {
            return Err(Fault::new(format_args!("`{name}` is no namespace")));
        };
        let Object::Namespace(members) = &**object else {
            return Err(Fault::new(format_args!("`{name}` is no namespace")));
        };
        let before = members.borrow_mut().insert(member.to_owned(), value);
        if before.is_none() {
            self.make.0.keep(SCOPE_BYTES + member.len())?;
        }
        // Freed only now, when nothing of the namespace is borrowed.
        drop(before);
        Ok(())
    }

    pub(super) fn for_loop(
        &mut self,
        inner: &'a For,
        over: &Value<'a>,
        depth: usize,
        scope: &Rc<Scope<'a>>,
        out: &mut Buffer<'a>,
    ) -> Outcome<()> {
        let items = self.loop_items(inner, over, scope)?;
        if items.items().is_empty() {
            let scope = self.child(scope)?;
            self.statements(&inner.otherwise, &scope, out)?;
            return Ok(());
        }
        let again = inner.recursive.then(|| (inner, Rc::clone(scope)));
        let state = self.make.object(Object::Loop(Loop {
            items: items.clone(),
            index: 0.into(),
            depth,
            again,
            changed: RefCell::default(),
        }))?;
        for (index, item) in items.items().iter().enumerate() {
            if let Value::Object(object) = &state
                && let Object::Loop(state) = &**object
            {
                state.index.set(index);
            }
            let scope = self.child(scope)?;
            scope.set("loop", state.clone())?;
            self.assign(&inner.target, item.clone(), &scope)?;
            if self.statements(&inner.body, &scope, out)? == Flow::Break {
                break;
            }
        }
        Ok(())
    }

    /// What a loop goes over: the items that pass its test.
    fn loop_items(
        &mut self,
        inner: &'a For,
        over: &Value<'a>,
        scope: &Rc<Scope<'a>>,
    ) -> Outcome<List<'a>> {
        let items = self.make.items(over)?;
        let Some(test) = &inner.test else { return Ok(items) };
        let mut passed = Vec::new();
        for item in items.items() {
            let scope = self.child(scope)?;
            self.assign(&inner.target, item.clone(), &scope)?;
            if self.expr(test, &scope)?.is_true() {
                passed.push(item.clone());
            }
        }
        self.make.list_of(passed)
    }
}
