//! Calls: of macros, of loops, and of the functions that every template has.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use indexmap::IndexMap;

use super::ast::Macro;
use super::eval::{Interpreter, Scope};
use super::value::{Function, Object, Value};
use super::{Fault, Outcome, methods, time};

/// Most numbers that `range` gives, as in Jinja2's sandbox.
const RANGE_MAX: i128 = 100_000;

/// Arguments of a call.
#[derive(Debug, Default)]
pub(super) struct Args<'a> {
    pub(super) positional: Vec<Value<'a>>,
    pub(super) named: Vec<(String, Value<'a>)>,
}

impl<'a> Args<'a> {
    /// The arguments of the parameters `names`; more than these are an error.
    pub(super) fn bind<const N: usize>(
        self,
        what: &str,
        names: [&str; N],
    ) -> Outcome<[Option<Value<'a>>; N]> {
        let mut bound = [const { None }; N];
        if self.positional.len() > N {
            let found = self.positional.len();
            return Err(Fault::new(format_args!(
                "`{what}` takes at most {N} arguments, not {found}"
            )));
        }
        for (place, value) in bound.iter_mut().zip(self.positional) {
            *place = Some(value);
        }
        for (name, value) in self.named {
            let Some(at) = names.iter().position(|known| *known == name) else {
                return Err(Fault::new(format_args!("`{what}` has no argument `{name}`")));
            };
            if bound[at].replace(value).is_some() {
                return Err(Fault::new(format_args!("`{what}` has `{name}` twice")));
            }
        }
        Ok(bound)
    }
}

/// An argument that has to be there.
pub(super) fn needed<'a>(value: Option<Value<'a>>, what: &str) -> Outcome<Value<'a>> {
    value.ok_or_else(|| Fault::new(format_args!("`{what}` is missing")))
}

/// An argument that is an integer, or absent.
pub(super) fn integer(value: Option<&Value<'_>>, what: &str) -> Outcome<Option<i128>> {
    match value {
        None => Ok(None),
        Some(value) => match value.as_index() {
            Some(index) => Ok(Some(index)),
            None => Err(Fault::new(format_args!("`{what}` is no integer"))),
        },
    }
}

/// A length: negative ones are 0.
pub(super) fn length(value: Option<&Value<'_>>, what: &str) -> Outcome<Option<usize>> {
    let value = integer(value, what)?;
    Ok(value.map(|value| usize::try_from(value.max(0)).unwrap_or(usize::MAX)))
}

/// An argument that is a text, or absent.
pub(super) fn text<'v>(value: Option<&'v Value<'_>>, what: &str) -> Outcome<Option<&'v str>> {
    match value {
        None => Ok(None),
        Some(value) => match value.as_str() {
            Some(text) => Ok(Some(text)),
            None => Err(Fault::new(format_args!("`{what}` is no text"))),
        },
    }
}

impl<'a> Interpreter<'a> {
    /// Calls a value.
    pub(super) fn call(&mut self, value: &Value<'a>, args: Args<'a>) -> Outcome<Value<'a>> {
        let Value::Object(object) = value else {
            let found = value.type_name();
            return Err(Fault::new(format_args!("a value of the type {found} cannot be called")));
        };
        match &**object {
            Object::Macro(inner, scope) => self.nested(|i| i.call_macro(inner, scope, args)),
            Object::Method(value, name) => methods::call(&self.make, value, name, args),
            Object::Function(function) => self.function(*function, args),
            Object::Loop(inner) => {
                let Some((again, scope)) = &inner.again else {
                    return Err(Fault::new("only a loop that is `recursive` can be called"));
                };
                let [over] = args.bind("loop", ["iterable"])?;
                let (over, depth) = (needed(over, "iterable")?, inner.depth + 1);
                let mut out = self.make.buffer()?;
                self.nested(|i| i.for_loop(again, &over, depth, scope, &mut out))?;
                self.make.built(out)
            }
            Object::LoopMethod(of, name) => self.loop_method(of, name, args),
            Object::Joiner(separator, used) => {
                let first = !used.replace(true);
                if first { self.make.text("") } else { Ok(Value::Text(separator.clone())) }
            }
            Object::Namespace(_) | Object::Cycler(..) => {
                Err(Fault::new(format_args!("a {} cannot be called", value.type_name())))
            }
        }
    }

    fn loop_method(&mut self, of: &Object<'a>, name: &str, args: Args<'a>) -> Outcome<Value<'a>> {
        let values = args.positional;
        match (of, name) {
            (Object::Loop(inner), "cycle") => {
                let index = inner.index.get().checked_rem(values.len());
                let value = index.and_then(|index| values.get(index).cloned());
                value.ok_or_else(|| Fault::new("no items for cycling given"))
            }
            (Object::Loop(inner), _) => {
                let values = self.make.tuple(values)?;
                let mut shown = self.make.buffer()?;
                self.make.represent(&mut shown, &values)?;
                let (now, _) = shown.into_parts();
                self.make.0.keep(now.len())?;
                let before = inner.changed.borrow_mut().replace(now.clone());
                Ok(Value::Bool(before.as_ref() != Some(&now)))
            }
            (Object::Cycler(items, at), "next") => {
                let now = at.get();
                at.set((now + 1) % items.items().len().max(1));
                items.items().get(now).cloned().ok_or_else(|| Fault::new("no items"))
            }
            (Object::Cycler(_, at), _) => {
                at.set(0);
                Ok(Value::None)
            }
            _ => Err(Fault::new(format_args!("`{name}` cannot be called"))),
        }
    }

    fn call_macro(
        &mut self,
        inner: &'a Macro,
        around: &Rc<Scope<'a>>,
        args: Args<'a>,
    ) -> Outcome<Value<'a>> {
        let scope = self.child(around)?;
        let name = &inner.name;
        let mut positional = args.positional.into_iter();
        let mut named = args.named;
        for (parameter, default) in &inner.parameters {
            let at = named.iter().position(|(name, _)| **name == **parameter);
            let by_name = at.map(|at| named.swap_remove(at).1);
            let value = match (positional.next(), by_name, default) {
                (Some(_), Some(_), _) => {
                    return Err(Fault::new(format_args!("`{name}` has `{parameter}` twice")));
                }
                (Some(value), None, _) | (None, Some(value), _) => value,
                (None, None, Some(default)) => self.expr(default, &scope)?,
                (None, None, None) => Value::Undefined,
            };
            scope.set(parameter, value)?;
        }
        if let Some(at) = named.iter().position(|(name, _)| name == "caller") {
            scope.set("caller", named.swap_remove(at).1)?;
        }
        let rest: Vec<_> = positional.collect();
        if inner.takes_varargs {
            scope.set("varargs", self.make.tuple(rest)?)?;
        } else if !rest.is_empty() {
            let most = inner.parameters.len();
            return Err(Fault::new(format_args!("macro `{name}` takes at most {most} arguments")));
        }
        if inner.takes_kwargs {
            let mut map = IndexMap::new();
            for (name, value) in named {
                map.insert(self.make.key(&self.make.text(&name)?)?, value);
            }
            scope.set("kwargs", self.make.dict(map)?)?;
        } else if let Some((other, _)) = named.first() {
            return Err(Fault::new(format_args!("macro `{name}` has no argument `{other}`")));
        }
        let mut out = self.make.buffer()?;
        self.statements(&inner.body, &scope, &mut out)?;
        self.make.built(out)
    }

    fn function(&mut self, function: Function, args: Args<'a>) -> Outcome<Value<'a>> {
        match function {
            Function::Range => self.range(args),
            Function::Dict => methods::dict_of(&self.make, args),
            Function::Namespace => {
                let Value::Dict(dict) = methods::dict_of(&self.make, args)? else {
                    return Err(Fault::new("namespace: no dictionary"));
                };
                let mut members = IndexMap::new();
                for (key, value) in dict.map() {
                    let name = key.value().as_str();
                    let name = name.ok_or_else(|| Fault::new("names of members are texts"))?;
                    self.make.0.keep(128 + name.len())?;
                    members.insert(name.to_owned(), value.clone());
                }
                let value = self.make.object(Object::Namespace(RefCell::new(members)))?;
                if let Value::Object(object) = &value {
                    self.keep_namespace(object);
                }
                Ok(value)
            }
            Function::Cycler => {
                if args.positional.is_empty() {
                    return Err(Fault::new("at least one item has to be provided"));
                }
                let items = self.make.list_of(args.positional)?;
                self.make.object(Object::Cycler(items, Cell::new(0)))
            }
            Function::Joiner => {
                let [separator] = args.bind("joiner", ["sep"])?;
                let separator = match separator {
                    Some(separator) => separator,
                    None => self.make.text(", ")?,
                };
                let Value::Text(separator) = self.make.string(&separator)? else {
                    return Err(Fault::new("joiner: no text"));
                };
                self.make.object(Object::Joiner(separator, Cell::new(false)))
            }
            Function::RaiseException => {
                let [message] = args.bind("raise_exception", ["message"])?;
                let message = self.make.string(&message.unwrap_or(Value::None))?;
                Err(Fault::Raised(message.as_str().unwrap_or_default().to_owned()))
            }
            Function::StrftimeNow => {
                let [format] = args.bind("strftime_now", ["format"])?;
                let format = needed(format, "format")?;
                let format = text(Some(&format), "format")?.unwrap_or_default();
                let mut out = self.make.buffer()?;
                time::write_now(&mut out, format)?;
                self.make.built(out)
            }
        }
    }

    fn range(&mut self, args: Args<'a>) -> Outcome<Value<'a>> {
        let [first, second, step] = args.bind("range", ["start", "stop", "step"])?;
        let first = integer(first.as_ref(), "start")?.unwrap_or(0);
        let (start, stop) = match integer(second.as_ref(), "stop")? {
            Some(stop) => (first, stop),
            None => (0, first),
        };
        let step = integer(step.as_ref(), "step")?.unwrap_or(1);
        let too_large = || Fault::new(format_args!("range: more than {RANGE_MAX} numbers"));
        let span = stop.checked_sub(start).ok_or_else(too_large)?;
        let count = match span.checked_div(step) {
            None => return Err(Fault::new("range: the step is 0")),
            Some(whole) => whole.saturating_add(i128::from(span % step != 0)).max(0),
        };
        if count > RANGE_MAX {
            return Err(too_large());
        }
        let count = if (span > 0) == (step > 0) { count } else { 0 };
        self.make.0.steps(count as u64)?;
        let numbers = (0..count).map(|i| Value::Int(start + i * step)).collect();
        self.make.list(numbers)
    }
}
