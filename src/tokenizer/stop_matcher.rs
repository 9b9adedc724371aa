//! Stop texts in a stream: held back while they may be beginning, cut off when they are complete.

/// Looks for stop texts in text that comes in pieces.
///
/// The result does not depend on how the text is cut: the stop text that is complete first ends
/// it; of those complete at the same character, the one that began first.
#[derive(Clone, Debug, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    /// Text not yet given out: it may be the beginning of a stop text.
    held: String,
    /// Which was complete first.
    matched: Option<usize>,
}

/// Text released by a piece.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopOutput {
    /// Text that is no part of a stop text.
    pub text: String,
    /// A stop text is complete; nothing follows.
    pub stopped: bool,
}

impl StopMatcher {
    /// Looks for any of `stops`; empty ones are left out.
    #[must_use]
    pub fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|s| !s.is_empty()).cloned().collect();
        Self { stops, held: String::new(), matched: None }
    }

    /// Takes the next piece. Behind `stopped`, the matcher is empty again.
    pub fn push(&mut self, piece: &str) -> StopOutput {
        self.held.push_str(piece);
        if let Some((start, which)) = self.first_match() {
            self.matched = Some(which);
            let mut text = std::mem::take(&mut self.held);
            text.truncate(start);
            return StopOutput { text, stopped: true };
        }
        let rest = self.held.split_off(self.certain_bytes());
        StopOutput { text: std::mem::replace(&mut self.held, rest), stopped: false }
    }

    /// Ends the text: what was held back is no stop text after all.
    pub fn flush(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// The stop text that ended the text.
    #[must_use]
    pub fn matched(&self) -> Option<&str> {
        self.matched.map(|which| self.stops[which].as_str())
    }

    /// Start and number of the match that ends first.
    fn first_match(&self) -> Option<(usize, usize)> {
        let matches = self.stops.iter().enumerate().filter_map(|(which, stop)| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start, which))
        });
        matches.min().map(|(_, start, which)| (start, which))
    }

    /// Number of bytes of the held text that cannot belong to a stop text.
    fn certain_bytes(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest);
        (from..self.held.len())
            .filter(|at| self.held.is_char_boundary(*at))
            .find(|at| self.stops.iter().any(|stop| stop.starts_with(&self.held[*at..])))
            .unwrap_or(self.held.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, bool) {
        let stops: Vec<_> = stops.iter().map(ToString::to_string).collect();
        let mut matcher = StopMatcher::new(&stops);
        let mut texts = Vec::new();
        for piece in pieces {
            let StopOutput { text, stopped } = matcher.push(piece);
            texts.push(text);
            if stopped {
                return (texts, true);
            }
        }
        texts.push(matcher.flush());
        (texts, false)
    }

    #[test]
    fn a_stop_text_over_three_pieces_is_cut_off() {
        let (texts, stopped) = run(&["\nUser:"], &["Hi there", "\nUs", "er", ": what"]);
        assert_eq!(texts, ["Hi there", "", "", ""]);
        assert!(stopped);
    }

    #[test]
    fn a_beginning_that_comes_to_nothing_is_released() {
        let (texts, stopped) = run(&["STOP"], &["a S", "TO", "NE"]);
        assert_eq!(texts, ["a ", "", "STONE", ""]);
        assert!(!stopped);
        assert_eq!(run(&["STOP"], &["ST"]).0, ["", "ST"]);
    }

    #[test]
    fn a_beginning_inside_a_beginning_is_kept() {
        assert_eq!(
            run(&["aab"], &["aa", "a", "b!"]),
            (vec!["".into(), "a".into(), "".into()], true)
        );
    }

    #[test]
    fn many_byte_characters_and_no_stops() {
        assert_eq!(run(&["🍎!"], &["x🍎", "?"]).0, ["x", "🍎?", ""]);
        assert_eq!(run(&[], &["x"]).0, ["x", ""]);
        assert_eq!(run(&[""], &["x"]).0, ["x", ""]);
    }

    proptest! {
        #[test]
        fn the_result_does_not_depend_on_the_pieces(
            text in "[abc]{0,12}", stops in prop::collection::vec("[abc]{1,4}", 0..4),
        ) {
            let stops: Vec<_> = stops.iter().map(String::as_str).collect();
            let (whole, whole_stopped) = run(&stops, &[&text]);
            let letters: Vec<_> = text.split("").collect();
            let (parts, parts_stopped) = run(&stops, &letters);
            prop_assert_eq!(whole.concat(), parts.concat());
            prop_assert_eq!(whole_stopped, parts_stopped);
            let any = stops.iter().any(|stop| text.contains(stop));
            prop_assert_eq!(whole_stopped, any);
        }
    }
}
