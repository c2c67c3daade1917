//! Who speaks next.

/// Whose a request is: an API key, or an address where there are none.
pub type Client = u64;

/// Requests that wait for a slot, new ones and those between two pieces of a long text.
///
/// A free slot goes to the client with the fewest slots, then to the request that came first. A long text so gives way after
/// a piece only to a client who is worse off, and one client's many requests do not delay another's first.
#[derive(Debug)]
pub struct Waiting<T> {
    entries: Vec<Entry<T>>,
}

#[derive(Debug)]
struct Entry<T> {
    client: Client,
    arrival: u64,
    item: T,
}

impl<T> Default for Waiting<T> {
    fn default() -> Waiting<T> {
        Waiting { entries: Vec::new() }
    }
}

impl<T> Waiting<T> {
    /// Adds a request; `arrival` counts up with the requests and is kept by one that comes back.
    pub fn push(&mut self, client: Client, arrival: u64, item: T) {
        self.entries.push(Entry { client, arrival, item });
    }

    /// Takes the request that a free slot goes to; `slots_of` counts the slots of a client.
    pub fn next(&mut self, slots_of: impl Fn(Client) -> usize) -> Option<T> {
        let rank = |entry: &Entry<T>| (slots_of(entry.client), entry.arrival);
        let best = self.entries.iter().enumerate().min_by_key(|(_, entry)| rank(entry))?.0;
        Some(self.entries.swap_remove(best).item)
    }

    /// Removes and returns the requests that `over` names.
    pub fn take(&mut self, over: impl Fn(&T) -> bool) -> Vec<T> {
        let taken = self.entries.extract_if(.., |entry| over(&entry.item));
        taken.map(|entry| entry.item).collect()
    }

    /// Requests that wait.
    pub fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn among_equals_the_first_comes_first() {
        let mut waiting = Waiting::default();
        (0..4).rev().for_each(|i| waiting.push(7, i, i));
        let order: Vec<u64> = std::iter::from_fn(|| waiting.next(|_| 1)).collect();
        assert_eq!(order, [0, 1, 2, 3]);
        assert_eq!(waiting.len(), 0);
    }

    #[test]
    fn many_requests_of_one_client_do_not_delay_the_first_of_another() {
        let mut waiting = Waiting::default();
        (0..5).for_each(|i| waiting.push(1, i, "many"));
        waiting.push(2, 5, "one");
        assert_eq!(waiting.next(|client| usize::from(client == 1)), Some("one"));
        assert_eq!(waiting.len(), 5);
    }

    #[test]
    fn a_long_text_goes_on_unless_another_client_is_worse_off() {
        let came_back = |others_of_its_client: usize| {
            let mut waiting = Waiting::default();
            waiting.push(1, 0, "long");
            waiting.push(2, 9, "new");
            waiting.next(|client| if client == 1 { others_of_its_client } else { 0 })
        };
        assert_eq!(came_back(0), Some("long"));
        assert_eq!(came_back(1), Some("new"));
    }

    #[test]
    fn those_that_are_over_are_taken_out() {
        let mut waiting = Waiting::default();
        (0..6).for_each(|i| waiting.push(1, i, i));
        let mut over = waiting.take(|i| i % 2 == 0);
        over.sort_unstable();
        assert_eq!((over, waiting.len()), (vec![0, 2, 4], 3));
    }
}
