//! Who speaks next.

use std::collections::HashMap;

/// Whose a request is: an API key, or an address where there are none.
pub type Client = u64;

/// Requests that wait for a slot, new ones and those between two pieces of a long text.
///
/// A free slot goes to the client with the fewest slots; among equals to a text that has begun, so that its listener hears no
/// gap; then to the client whose last turn is longest ago; then to the request that came first. One client's many requests so
/// do not delay another's first, and a long text gives way only to a client who is worse off.
#[derive(Debug)]
pub struct Waiting<T> {
    entries: Vec<Entry<T>>,
    /// The last turn of every client who waits or speaks.
    turns: HashMap<Client, u64>,
    turn: u64,
}

#[derive(Debug)]
struct Entry<T> {
    client: Client,
    begun: bool,
    arrival: u64,
    item: T,
}

impl<T> Default for Waiting<T> {
    fn default() -> Waiting<T> {
        Waiting { entries: Vec::new(), turns: HashMap::new(), turn: 0 }
    }
}

impl<T> Waiting<T> {
    /// Adds a request; `arrival` counts up with the requests, `begun` says that it has spoken and goes on.
    pub fn push(&mut self, client: Client, begun: bool, arrival: u64, item: T) {
        self.entries.push(Entry { client, begun, arrival, item });
    }

    /// Takes the request that a free slot goes to; `slots_of` counts the slots of a client.
    pub fn next(&mut self, slots_of: impl Fn(Client) -> usize) -> Option<T> {
        let last_turn = |client: &Client| self.turns.get(client).copied().unwrap_or(0);
        let rank = |entry: &Entry<T>| (slots_of(entry.client), !entry.begun, last_turn(&entry.client), entry.arrival);
        let best = self.entries.iter().enumerate().min_by_key(|(_, entry)| rank(entry))?.0;
        let Entry { client, item, .. } = self.entries.swap_remove(best);
        self.turns.retain(|other, _| slots_of(*other) > 0 || self.entries.iter().any(|entry| entry.client == *other));
        self.turn += 1;
        self.turns.insert(client, self.turn);
        Some(item)
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
        (0..4).rev().for_each(|i| waiting.push(7, false, i, i));
        let order: Vec<u64> = std::iter::from_fn(|| waiting.next(|_| 1)).collect();
        assert_eq!(order, [0, 1, 2, 3]);
        assert_eq!(waiting.len(), 0);
    }

    #[test]
    fn many_requests_of_one_client_do_not_delay_the_first_of_another() {
        let mut waiting = Waiting::default();
        (0..3).for_each(|i| waiting.push(1, false, i, i));
        assert_eq!(waiting.next(|_| 0), Some(0));
        waiting.push(2, false, 9, 9);
        waiting.push(3, false, 10, 10);
        let order: Vec<u64> = std::iter::from_fn(|| waiting.next(|_| 0)).collect(); // one slot, free again each time
        assert_eq!(order, [9, 10, 1, 2]);
    }

    #[test]
    fn who_has_fewer_slots_is_first() {
        let mut waiting = Waiting::default();
        waiting.push(1, false, 0, "many");
        waiting.push(2, false, 5, "one");
        assert_eq!(waiting.next(|client| usize::from(client == 1)), Some("one"));
    }

    #[test]
    fn a_long_text_goes_on_unless_another_client_is_worse_off() {
        let came_back = |others_of_its_client: usize| {
            let mut waiting = Waiting::default();
            waiting.push(1, true, 3, "long");
            waiting.push(2, false, 2, "new");
            waiting.next(|client| if client == 1 { others_of_its_client } else { 0 })
        };
        assert_eq!(came_back(0), Some("long"));
        assert_eq!(came_back(1), Some("new"));
    }

    #[test]
    fn clients_who_are_gone_are_forgotten() {
        let mut waiting = Waiting::default();
        for client in 0..100 {
            waiting.push(client, false, client, client);
            assert_eq!(waiting.next(|_| 0), Some(client));
        }
        assert_eq!(waiting.turns.len(), 1);
    }

    #[test]
    fn those_that_are_over_are_taken_out() {
        let mut waiting = Waiting::default();
        (0..6).for_each(|i| waiting.push(1, false, i, i));
        let mut over = waiting.take(|i| i % 2 == 0);
        over.sort_unstable();
        assert_eq!((over, waiting.len()), (vec![0, 2, 4], 3));
    }
}
