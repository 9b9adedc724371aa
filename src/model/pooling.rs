//! From the rows of a text's tokens to one vector.

use super::hyper::Pooling;

impl Pooling {
    /// The vector of a text.
    ///
    /// `rows`: f32 `[tokens, width]`, at least one row.
    #[must_use]
    pub fn pool(self, rows: &[f32], width: usize) -> Vec<f32> {
        let mut pool = Pool::new(self, width);
        pool.add(rows);
        pool.finish()
    }
}

/// A text's vector in the making, while its rows come in parts. How they are cut does not change
/// the result.
#[derive(Debug)]
pub struct Pool {
    pooling: Pooling,
    tokens: usize,
    /// The sum of the rows, or the row that counts so far.
    values: Vec<f64>,
}

impl Pool {
    /// Nothing yet, of rows of `width` values.
    #[must_use]
    pub fn new(pooling: Pooling, width: usize) -> Self {
        Self { pooling, tokens: 0, values: vec![0.0; width] }
    }

    /// Rows so far.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Takes the next rows: f32 `[tokens, width]`.
    pub fn add(&mut self, rows: &[f32]) {
        for row in rows.chunks_exact(self.values.len()) {
            let values = self.values.iter_mut().zip(row);
            match self.pooling {
                Pooling::Mean => values.for_each(|(sum, value)| *sum += f64::from(*value)),
                Pooling::First if self.tokens > 0 => {}
                _ => values.for_each(|(kept, value)| *kept = f64::from(*value)),
            }
            self.tokens += 1;
        }
    }

    /// The vector of the rows, of which there is one at least.
    #[must_use]
    pub fn finish(self) -> Vec<f32> {
        let divisor = if self.pooling == Pooling::Mean { self.tokens as f64 } else { 1.0 };
        self.values.into_iter().map(|value| (value / divisor) as f32).collect()
    }
}

/// Divides a vector by its length; one without a length stays as it is.
pub fn normalise(vector: &mut [f32]) {
    let squares: f64 = vector.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
    if squares > 0.0 {
        let factor = 1.0 / squares.sqrt();
        vector.iter_mut().for_each(|value| *value = (f64::from(*value) * factor) as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_its_mean_its_first_or_its_last_row() {
        let rows = [1.0, 2.0, 3.0, 5.0, 8.0, 11.0];
        assert_eq!(Pooling::Mean.pool(&rows, 2), [4.0, 6.0]);
        assert_eq!(Pooling::First.pool(&rows, 2), [1.0, 2.0]);
        assert_eq!(Pooling::Last.pool(&rows, 2), [8.0, 11.0]);
    }

    #[test]
    fn rows_in_parts_make_the_vector_that_they_make_at_once() {
        let rows: Vec<f32> = (0..35_u8).map(|at| f32::from(at) * 0.37 - 3.0).collect();
        for pooling in [Pooling::Mean, Pooling::First, Pooling::Last] {
            let mut pool = Pool::new(pooling, 5);
            for part in [0..15, 15..20, 20..35] {
                pool.add(&rows[part]);
            }
            assert_eq!(pool.tokens(), 7);
            assert_eq!(pool.finish(), pooling.pool(&rows, 5));
        }
    }

    #[test]
    fn a_vector_gets_length_one_unless_it_has_none() {
        let mut vector = [3.0, 4.0];
        normalise(&mut vector);
        assert_eq!(vector, [0.6, 0.8]);
        let mut nothing = [0.0; 2];
        normalise(&mut nothing);
        assert_eq!(nothing, [0.0; 2]);
    }
}
