//! `hob inspect`: what a GGUF file holds.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::ser::{SerializeMap, SerializeSeq, Serializer};

use super::args::InspectOptions;
use super::output::{self, Output, bytes, count};
use super::table::{Align, Facts, Table};
use super::{CliError, exit, paths};
use crate::gguf::{Array, GgufFile, Metadata, TensorInfo, Value};
use crate::hf;

/// Longer arrays are shortened to as many elements as fit a line.
const ARRAY_SHOWN_MAX: usize = 8;
/// Longer texts are shortened.
const TEXT_SHOWN_MAX: usize = 60;

pub(crate) fn run(options: &InspectOptions) -> Result<u8, CliError> {
    let file = hf::open_model(&paths::model(&options.model)?, None)?;
    let report = Report::new(&file, options.full);
    let mut output = Output::stdout();
    if options.json {
        output.json(&report)?;
    } else {
        report.write(&mut output)?;
    }
    Ok(exit::DONE)
}

/// All there is to show of a file.
#[derive(Serialize)]
struct Report<'a> {
    file: String,
    /// The files of a split model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parts: Vec<String>,
    file_bytes: u64,
    version: u32,
    alignment: u32,
    parameters: u64,
    metadata: ShownMetadata<'a>,
    tensors: Vec<Tensor<'a>>,
    types: BTreeMap<&'static str, Total>,
}

#[derive(Serialize)]
struct Tensor<'a> {
    name: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    /// Length of a row first, as in the file.
    shape: &'a [u64],
    bytes: u64,
}

/// Sums over the tensors of a type.
#[derive(Default, Serialize)]
struct Total {
    tensors: u64,
    parameters: u64,
    bytes: u64,
}

impl<'a> Report<'a> {
    fn new(file: &'a GgufFile, full: bool) -> Self {
        let mut types = BTreeMap::<_, Total>::new();
        for tensor in file.tensors() {
            let total = types.entry(tensor.dtype.name()).or_default();
            total.tensors += 1;
            total.parameters += elements(tensor);
            total.bytes += tensor.bytes;
        }
        let split = file.part_paths().len() > 1;
        let parts = file.part_paths().filter(|_| split).map(|path| path.display().to_string());
        Self {
            file: file.path().display().to_string(),
            parts: parts.collect(),
            file_bytes: file.file_bytes(),
            version: file.version(),
            alignment: file.alignment(),
            parameters: types.values().map(|total| total.parameters).sum(),
            metadata: ShownMetadata { metadata: file.metadata(), full },
            tensors: file.tensors().iter().map(Tensor::new).collect(),
            types,
        }
    }

    fn write(&self, output: &mut Output) -> Result<(), CliError> {
        let mut facts = Facts::default();
        facts.add("file", &self.file);
        if !self.parts.is_empty() {
            facts.add("parts", count(self.parts.len() as u64));
        }
        facts.add("size", bytes(self.file_bytes));
        facts.add(
            "format",
            match self.version {
                0 => "Hugging Face folder, as GGUF".to_owned(),
                version => format!("GGUF {version}, aligned to {}", self.alignment),
            },
        );
        facts.add("parameters", count(self.parameters));
        facts.write(output)?;
        output.line("")?;
        self.metadata.table().write(output)?;
        if self.tensors.is_empty() {
            return output.line("\nThe file has no tensors: it is a vocabulary alone.");
        }
        output.line("")?;
        self.tensor_table().write(output)?;
        output.line("")?;
        self.type_table().write(output)
    }

    fn tensor_table(&self) -> Table {
        let mut table = Table::new(&[
            ("TENSOR", Align::Left),
            ("TYPE", Align::Left),
            ("SHAPE", Align::Left),
            ("SIZE", Align::Right),
        ]);
        for tensor in &self.tensors {
            let shape: Vec<String> = tensor.shape.iter().map(u64::to_string).collect();
            table.row(vec![
                tensor.name.to_owned(),
                tensor.kind.to_owned(),
                shape.join(" × "),
                bytes(tensor.bytes),
            ]);
        }
        table
    }

    fn type_table(&self) -> Table {
        let mut table = Table::new(&[
            ("TYPE", Align::Left),
            ("TENSORS", Align::Right),
            ("PARAMETERS", Align::Right),
            ("SIZE", Align::Right),
        ]);
        for (name, total) in &self.types {
            table.row(vec![
                (*name).to_owned(),
                count(total.tensors),
                count(total.parameters),
                bytes(total.bytes),
            ]);
        }
        table
    }
}

impl<'a> Tensor<'a> {
    fn new(tensor: &'a TensorInfo) -> Self {
        let kind = tensor.dtype.name();
        Self { name: &tensor.name, kind, shape: &tensor.dims, bytes: tensor.bytes }
    }
}

fn elements(tensor: &TensorInfo) -> u64 {
    tensor.row_len() * tensor.rows()
}

/// Metadata, with long arrays shortened unless all is asked for.
struct ShownMetadata<'a> {
    metadata: &'a Metadata,
    full: bool,
}

impl ShownMetadata<'_> {
    fn table(&self) -> Table {
        let columns = [("KEY", Align::Left), ("TYPE", Align::Left), ("VALUE", Align::Left)];
        let mut table = Table::new(&columns);
        for (key, value) in self.metadata.iter() {
            let text = match value {
                Value::Array(array) => self.array_text(array),
                single => self.text(single),
            };
            table.row(vec![key.to_owned(), value.type_name(), text]);
        }
        table
    }

    fn array_text(&self, array: &Array) -> String {
        let shown = if self.full { array.len() } else { array.len().min(ARRAY_SHOWN_MAX) };
        let values = array.values(0..shown);
        let mut parts: Vec<String> = values.iter().map(|value| self.text(value)).collect();
        if shown < array.len() {
            parts.push(format!("… {} in all", count(array.len() as u64)));
        }
        format!("[{}]", parts.join(", "))
    }

    fn text(&self, value: &Value) -> String {
        match value {
            Value::Str(text) if self.full => text.clone(),
            Value::Str(text) => output::shortened(text, TEXT_SHOWN_MAX).into_owned(),
            number => serde_json::to_string(&ShownValue { value: number, full: self.full })
                .unwrap_or_else(|error| error.to_string()),
        }
    }
}

impl Serialize for ShownMetadata<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.metadata.len()))?;
        for (key, value) in self.metadata.iter() {
            map.serialize_entry(key, &ShownValue { value, full: self.full })?;
        }
        map.end()
    }
}

/// A value as JSON: floats in their shortest form, a long array as its type, length and beginning.
struct ShownValue<'a> {
    value: &'a Value,
    full: bool,
}

impl Serialize for ShownValue<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.value {
            Value::U8(value) => serializer.serialize_u8(*value),
            Value::I8(value) => serializer.serialize_i8(*value),
            Value::U16(value) => serializer.serialize_u16(*value),
            Value::I16(value) => serializer.serialize_i16(*value),
            Value::U32(value) => serializer.serialize_u32(*value),
            Value::I32(value) => serializer.serialize_i32(*value),
            Value::U64(value) => serializer.serialize_u64(*value),
            Value::I64(value) => serializer.serialize_i64(*value),
            Value::F32(value) => serializer.serialize_f32(*value),
            Value::F64(value) => serializer.serialize_f64(*value),
            Value::Bool(value) => serializer.serialize_bool(*value),
            Value::Str(value) => serializer.serialize_str(value),
            Value::Array(array) if self.full || array.len() <= ARRAY_SHOWN_MAX => {
                Elements { array, shown: array.len() }.serialize(serializer)
            }
            Value::Array(array) => {
                let mut map = serializer.serialize_map(Some(3))?;
                map.serialize_entry("type", array.element_name())?;
                map.serialize_entry("length", &array.len())?;
                map.serialize_entry("first", &Elements { array, shown: ARRAY_SHOWN_MAX })?;
                map.end()
            }
        }
    }
}

/// The first `shown` elements of an array.
struct Elements<'a> {
    array: &'a Array,
    shown: usize,
}

impl Serialize for Elements<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.shown))?;
        for value in self.array.values(0..self.shown) {
            list.serialize_element(&ShownValue { value: &value, full: true })?;
        }
        list.end()
    }
}
