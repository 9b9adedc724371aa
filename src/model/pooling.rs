//! From the rows of a text's tokens to one vector.

use super::hyper::Pooling;

impl Pooling {
    /// The vector of a text.
    ///
    /// `rows`: f32 `[tokens, width]`, at least one row.
    #[must_use]
    pub fn pool(self, rows: &[f32], width: usize) -> Vec<f32> {
        let tokens = rows.len() / width;
        match self {
            Self::First => rows[..width].to_vec(),
            Self::Last => rows[(tokens - 1) * width..].to_vec(),
            Self::Mean => (0..width)
                .map(|at| {
                    let column = rows[at..].iter().step_by(width);
                    (column.map(|value| f64::from(*value)).sum::<f64>() / tokens as f64) as f32
                })
                .collect(),
        }
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
    fn a_vector_gets_length_one_unless_it_has_none() {
        let mut vector = [3.0, 4.0];
        normalise(&mut vector);
        assert_eq!(vector, [0.6, 0.8]);
        let mut nothing = [0.0; 2];
        normalise(&mut nothing);
        assert_eq!(nothing, [0.0; 2]);
    }
}
