//! Tables with aligned columns.

use super::CliError;
use super::output::{self, Output};

const GAP: &str = "  ";

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// Rows of cells under headings.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with these columns.
    pub(crate) fn new(columns: &[(&str, Align)]) -> Self {
        let columns = columns.iter().map(|(name, align)| ((*name).to_owned(), *align)).collect();
        Self { columns, rows: Vec::new() }
    }

    /// Adds a row; it has as many cells as there are columns.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells.iter().map(|cell| output::on_one_line(cell)).collect());
    }

    /// Writes headings and rows.
    pub(crate) fn write(&self, output: &mut Output) -> Result<(), CliError> {
        let headings: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        output.styled_line(output::BOLD, &self.format(&headings))?;
        let body: String = self.rows.iter().map(|row| self.format(row) + "\n").collect();
        output.text(&body)
    }

    fn format(&self, cells: &[String]) -> String {
        let mut line = String::new();
        for (index, (cell, (_, align))) in cells.iter().zip(&self.columns).enumerate() {
            let padding = " ".repeat(self.width(index).saturating_sub(cell.chars().count()));
            if index > 0 {
                line.push_str(GAP);
            }
            match align {
                Align::Left => line.extend([cell.as_str(), &padding]),
                Align::Right => line.extend([padding.as_str(), cell]),
            }
        }
        line.trim_end().to_owned()
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or(0).max(self.columns[column].0.chars().count())
    }
}

/// Names and values below each other, the values aligned.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    facts: Vec<(String, String)>,
}

impl Facts {
    /// Adds a fact.
    pub(crate) fn add(&mut self, name: &str, value: impl Into<String>) {
        self.facts.push((output::on_one_line(name), output::on_one_line(&value.into())));
    }

    /// Writes all of them.
    pub(crate) fn write(&self, output: &mut Output) -> Result<(), CliError> {
        let width = self.facts.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let lines = self.facts.iter().map(|(name, value)| format!("{name:width$}{GAP}{value}\n"));
        output.text(&lines.collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&[("NAME", Align::Left), ("N", Align::Right)]);
        table.row(vec!["a longer name".into(), "1".into()]);
        table.row(vec!["é".into(), "1000".into()]);
        let lines: Vec<String> = table.rows.iter().map(|row| table.format(row)).collect();
        assert_eq!(lines, ["a longer name     1", "é              1000"]);
    }
}
