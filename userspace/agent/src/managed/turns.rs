//! The order in which .NET processes are read, where there is not time for all in one turn: those that
//! one turn does not reach are the first of the next.

use crate::image_id::ImageId;

/// See the module.
#[derive(Default)]
pub(super) struct Turns {
    /// The process that the next turn begins with.
    next: Option<ImageId>,
    /// Whether the last turn was cut short.
    pub has_more: bool,
}

impl Turns {
    /// A turn begins: all of these, from the first that the last turn did not reach.
    pub fn begin(&mut self, images: impl Iterator<Item = ImageId>) -> Vec<ImageId> {
        let mut order: Vec<ImageId> = images.collect();
        order.sort_unstable();
        let first = order.partition_point(|image| Some(*image) < self.next);
        order.rotate_left(first);
        *self = Self::default();
        order
    }

    /// There is no time for this process, and those after it.
    pub fn cut_short(&mut self, at: ImageId) {
        *self = Self { next: Some(at), has_more: true };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_begins_with_the_first_process_that_the_last_one_had_no_time_for() {
        let mut turns = Turns::default();
        // There is time for two in each turn.
        let mut turn = |images: &[u32]| {
            let order = turns.begin(images.iter().map(|image| ImageId(*image)));
            if let Some(beyond) = order.get(2) {
                turns.cut_short(*beyond);
            }
            let read: Vec<u32> = order.iter().take(2).map(|image| image.0).collect();
            (read, turns.has_more)
        };
        assert_eq!(turn(&[5, 3, 1, 4, 2]), (vec![1, 2], true));
        assert_eq!(turn(&[1, 2, 3, 4, 5]), (vec![3, 4], true));
        assert_eq!(turn(&[1, 2, 3, 4, 5]), (vec![5, 1], true));
        // The next has ended; another has begun.
        assert_eq!(turn(&[1, 3, 4, 5, 6]), (vec![3, 4], true));
        assert_eq!(turn(&[1, 3, 4]), (vec![1, 3], true), "all after the last have ended");
        assert_eq!(turn(&[1, 4]), (vec![4, 1], false));
        assert_eq!(turn(&[1, 4]), (vec![1, 4], false), "there was time for all");
    }
}
