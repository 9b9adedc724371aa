//! Who may run: places in the batch, and who gives his up for whom.

use super::{Claim, Fairness};

/// Decision about requests that wait for a place in the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// There is room.
    Free,
    /// This one of those that run is to wait instead.
    InsteadOf(usize),
    /// No place now.
    None,
}

/// Whether `claim` gets a place among `running`, of which there may be `places`.
///
/// A place is taken from somebody less urgent who has had his share, the one least deserving; or
/// from a uid that has at least two more places than the claim's own, at the same priority or,
/// where it has had its share, a higher one: calling everything urgent keeps nobody else out.
#[must_use]
pub fn place(fair: &Fairness, claim: &Claim, running: &[Claim], places: usize) -> Placement {
    if running.len() < places {
        return Placement::Free;
    }
    let rank = fair.rank(claim);
    let order = fair.order(running);
    let places_of = |uid| running.iter().filter(|other| other.uid == uid).count();
    let own = places_of(claim.uid);
    let yields = |at: &usize| {
        let other = &running[*at];
        let less_urgent = other.priority > claim.priority && fair.rank(other) > rank;
        let greedy = other.uid != claim.uid
            && places_of(other.uid) >= own + 2
            && (other.priority == claim.priority || fair.rank(other) > rank);
        less_urgent || greedy
    };
    match order.into_iter().rev().find(yields) {
        Some(victim) => Placement::InsteadOf(victim),
        None => Placement::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::Priority;

    fn claim(request: u64, uid: u32, priority: Priority) -> Claim {
        Claim { request, uid, session: request, priority }
    }

    #[test]
    fn places_are_taken_from_the_less_urgent_and_the_greedy_alone() {
        let fair = Fairness::default();
        let running = [
            claim(1, 1, Priority::Normal),
            claim(2, 1, Priority::Normal),
            claim(3, 2, Priority::Background),
        ];
        let of = |uid, priority| place(&fair, &claim(9, uid, priority), &running, 3);
        assert_eq!(of(7, Priority::Interactive), Placement::InsteadOf(2));
        assert_eq!(of(1, Priority::Normal), Placement::InsteadOf(2));
        assert_eq!(of(7, Priority::Background), Placement::None);
        assert_eq!(place(&fair, &running[0], &running[..2], 3), Placement::Free);
        let same = [claim(1, 1, Priority::Normal), claim(2, 1, Priority::Normal)];
        let taken = place(&fair, &claim(9, 2, Priority::Normal), &same, 2);
        assert_eq!(taken, Placement::InsteadOf(1), "one of the two places of uid 1");
        assert_eq!(place(&fair, &claim(9, 1, Priority::Normal), &same, 2), Placement::None);
    }

    #[test]
    fn a_uid_whose_requests_are_all_urgent_keeps_nobody_out() {
        let mut fair = Fairness::default();
        let running: Vec<Claim> = (0..4).map(|at| claim(at, 1, Priority::Interactive)).collect();
        let other = claim(9, 2, Priority::Normal);
        assert_eq!(place(&fair, &other, &running, 4), Placement::None, "the urgent come first");
        running.iter().for_each(|claim| fair.charge(claim, 32));
        assert_eq!(place(&fair, &other, &running, 4), Placement::InsteadOf(3));
        // One place does not become two by it, and nobody loses the last.
        let own = claim(10, 1, Priority::Background);
        assert_eq!(place(&fair, &own, &running, 4), Placement::None);
        assert_eq!(place(&fair, &other, &running[..1], 1), Placement::None);
    }
}
