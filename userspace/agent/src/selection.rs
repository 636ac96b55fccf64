//! Selects the processes whose samples are kept.

use std::collections::HashSet;

use crate::image_id::ImageId;
use crate::processes::container::Group;
use crate::processes::table::ProcessTable;

/// The user's selection; empty means the whole host.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub pids: Vec<u32>,
    /// Names of processes, exactly or with `*` at the end.
    pub comms: Vec<String>,
    /// Container ids (or the start of one), control group paths, or parts of one.
    pub groups: Vec<String>,
    pub follow_children: bool,
    /// Only what is added later (`Selection::add_root`), and what the lists name.
    pub only_roots: bool,
}

impl Wanted {
    pub fn is_everything(&self) -> bool {
        self.pids.is_empty() && self.comms.is_empty() && self.groups.is_empty() && !self.only_roots
    }

    pub fn comm_matches(&self, comm: &str) -> bool {
        self.comms.iter().any(|wanted| is_comm(wanted, comm))
    }

    pub fn group_matches(&self, group: &Group) -> bool {
        self.groups.iter().any(|wanted| is_group(wanted, group))
    }
}

fn is_comm(wanted: &str, comm: &str) -> bool {
    match wanted.strip_suffix('*') {
        Some(start) => comm.starts_with(start),
        // The kernel keeps 15 bytes of a name.
        None => comm == wanted || comm.len() == 15 && wanted.starts_with(comm),
    }
}

fn is_group(wanted: &str, group: &Group) -> bool {
    let by_id =
        wanted.len() >= 6 && group.container.as_deref().is_some_and(|id| id.starts_with(wanted));
    let is_path = |path: &str| {
        !wanted.is_empty() && path.trim_matches('/') == wanted.trim_matches('/')
            || wanted.len() >= 4 && path.contains(wanted)
    };
    by_id || group.paths().any(is_path)
}

/// A name or a group of [`Wanted`], and whether a process had it so far.
#[derive(Clone, Debug)]
struct Selector {
    text: String,
    is_group: bool,
    has_matched: bool,
}

/// Whether a process is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    No,
    Yes,
    /// By its name or group, which was not known before.
    Newly,
}

/// The wanted processes as they come and go.
pub struct Selection {
    wanted: Wanted,
    /// Processes selected by pid that still are the same process.
    roots: HashSet<u32>,
    /// Processes kept because of their pid or an ancestor of theirs.
    followed: HashSet<u32>,
    /// Images kept because of their name or group.
    matched: HashSet<ImageId>,
    selectors: Vec<Selector>,
}

impl Selection {
    pub fn new(wanted: Wanted, table: &ProcessTable) -> Self {
        let roots: HashSet<u32> = wanted.pids.iter().copied().collect();
        let selector = |is_group| {
            move |text: &String| Selector { text: text.clone(), is_group, has_matched: false }
        };
        let comms = wanted.comms.iter().map(selector(false));
        let selectors = comms.chain(wanted.groups.iter().map(selector(true))).collect();
        let (followed, matched) = (roots.clone(), HashSet::new());
        let mut selection = Self { followed, matched, roots, wanted, selectors };
        if selection.wanted.follow_children && !selection.followed.is_empty() {
            selection.follow_existing(table);
        }
        selection
    }

    /// Children that were there before the recording; parents may come after children in any
    /// listing, so this goes on until nothing new is found.
    fn follow_existing(&mut self, table: &ProcessTable) {
        loop {
            let before = self.followed.len();
            for pid in table.pids() {
                if table.get(pid).is_some_and(|process| self.followed.contains(&process.parent)) {
                    self.followed.insert(pid);
                }
            }
            if self.followed.len() == before {
                return;
            }
        }
    }

    pub fn is_everything(&self) -> bool {
        self.wanted.is_everything()
    }

    /// Whether a process of this name and group is wanted; notes by what.
    pub fn note_match(&mut self, comm: &str, group: Option<&Group>) -> bool {
        let mut matches = false;
        for selector in &mut self.selectors {
            let is_it = match selector.is_group {
                false => is_comm(&selector.text, comm),
                true => group.is_some_and(|group| is_group(&selector.text, group)),
            };
            selector.has_matched |= is_it;
            matches |= is_it;
        }
        matches
    }

    /// Names (`false`) and groups (`true`) that no process had so far.
    pub fn unmatched(&self) -> impl Iterator<Item = (bool, &str)> {
        let without = self.selectors.iter().filter(|selector| !selector.has_matched);
        without.map(|selector| (selector.is_group, selector.text.as_str()))
    }

    /// Whether names or groups are wanted, nothing else is, and no process had any so far.
    pub fn matches_nothing(&self) -> bool {
        !self.selectors.is_empty()
            && self.wanted.pids.is_empty()
            && !self.wanted.only_roots
            && self.selectors.iter().all(|selector| !selector.has_matched)
    }

    pub fn forked(&mut self, pid: u32, parent: u32) {
        if self.wanted.follow_children && self.followed.contains(&parent) {
            self.followed.insert(pid);
        } else if !self.roots.contains(&pid) {
            // A reused pid is another process.
            self.followed.remove(&pid);
        }
    }

    /// The parents of processes whose starts were missed are known by now. Returns what is followed since:
    /// those of them, and their children.
    pub fn adopted(&mut self, table: &ProcessTable, pids: &[u32]) -> Vec<u32> {
        let is_new = |pid: &u32| {
            let parent = table.get(*pid).map(|process| process.parent);
            let is_followed = parent.is_some_and(|parent| self.followed.contains(&parent));
            is_followed && !self.followed.contains(pid)
        };
        if !self.wanted.follow_children || !pids.iter().any(is_new) {
            return Vec::new();
        }
        let before = self.followed.clone();
        self.follow_existing(table);
        self.followed.difference(&before).copied().collect()
    }

    /// A process that is wanted from now on. The event of its own start may still come.
    pub fn add_root(&mut self, pid: u32) {
        self.roots.insert(pid);
        self.followed.insert(pid);
    }

    /// A process has ended: its pid may be another's next.
    pub fn ended(&mut self, pid: u32) {
        self.roots.remove(&pid);
    }

    /// Whether a process is known to be wanted before any sample of it was seen.
    pub fn surely_keeps(&self, pid: u32) -> bool {
        self.wanted.is_everything() || self.followed.contains(&pid)
    }

    /// Whether a process that runs this image is wanted, as far as is known: of processes that are selected by
    /// name or group, once they have been met.
    pub fn is_wanted(&self, pid: u32, image: ImageId) -> bool {
        self.surely_keeps(pid) || self.matched.contains(&image)
    }

    /// Whether processes are selected by their names or groups.
    pub fn has_selectors(&self) -> bool {
        !self.selectors.is_empty()
    }

    /// Forgets images that are gone.
    pub fn retain(&mut self, is_there: impl Fn(ImageId) -> bool) {
        self.matched.retain(|image| is_there(*image));
    }

    /// Whether the user has selected a process, or an ancestor of it: it is recorded, and not only one
    /// of the host's.
    pub fn is_chosen(&self, pid: u32) -> bool {
        self.followed.contains(&pid)
    }

    /// Whether a process is known to be unwanted before any sample of it was seen: with given
    /// processes and their children, lineage alone decides.
    pub fn surely_drops(&self, pid: u32) -> bool {
        let by_lineage = self.wanted.comms.is_empty() && self.wanted.groups.is_empty();
        by_lineage && !self.surely_keeps(pid)
    }

    pub fn is_root(&self, pid: u32) -> bool {
        self.roots.contains(&pid)
    }

    pub fn roots_are_gone(&self) -> bool {
        self.roots.is_empty()
    }

    /// Whether a sample of this process is kept. `group` is asked only when it matters.
    pub fn keeps(
        &mut self,
        (pid, image): (u32, ImageId),
        comm: &str,
        group: impl FnOnce() -> Option<std::sync::Arc<Group>>,
    ) -> Kept {
        if self.wanted.is_everything() || self.followed.contains(&pid) {
            return Kept::Yes;
        }
        let group = if self.wanted.groups.is_empty() { None } else { group() };
        let matches = self.note_match(comm, group.as_deref());
        if matches && self.wanted.follow_children {
            self.followed.insert(pid);
        }
        match matches {
            true if self.matched.insert(image) => Kept::Newly,
            true => Kept::Yes,
            false => {
                // It may have had another name before.
                self.matched.remove(&image);
                Kept::No
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_are_followed_and_reused_pids_are_not() {
        let wanted = Wanted { pids: vec![10], follow_children: true, ..Wanted::default() };
        let mut selection = Selection::new(wanted, &ProcessTable::default());
        selection.forked(11, 10);
        selection.forked(12, 11);
        assert_eq!(selection.keeps((12, ImageId(12)), "x", || None), Kept::Yes);
        selection.forked(12, 1);
        assert_eq!(selection.keeps((12, ImageId(12)), "x", || None), Kept::No);
    }

    #[test]
    fn a_process_whose_start_was_missed_is_followed_when_its_parent_is_known() {
        use crate::processes::table::{Existing, Threads};
        let wanted = Wanted { pids: vec![10], follow_children: true, ..Wanted::default() };
        let mut table = ProcessTable::default();
        let mut selection = Selection::new(wanted, &table);
        let existing =
            |pid, parent| Existing { pid, parent, comm: "cc", threads: Threads::default() };
        table.insert_unknown(11, "cc");
        table.insert_existing(existing(12, 11), Vec::new());
        assert!(selection.adopted(&table, &[11]).is_empty());
        assert!(table.adopt(existing(11, 10)));
        let mut newly = selection.adopted(&table, &[12, 11]);
        newly.sort_unstable();
        assert_eq!(newly, [11, 12]);
        assert!(selection.adopted(&table, &[11]).is_empty() && selection.surely_keeps(12));
    }

    #[test]
    fn a_recording_of_the_whole_host_has_chosen_no_process() {
        let wanted = Wanted { pids: vec![10], follow_children: true, ..Wanted::default() };
        let mut chosen = Selection::new(wanted, &ProcessTable::default());
        chosen.forked(11, 10);
        assert!(chosen.is_chosen(10) && chosen.is_chosen(11) && !chosen.is_chosen(12));
        let mut all = Selection::new(Wanted::default(), &ProcessTable::default());
        all.forked(11, 10);
        assert!(all.surely_keeps(11) && !all.is_chosen(11));
    }

    #[test]
    fn what_matched_no_process_is_known() {
        let wanted = Wanted {
            comms: vec!["nginx".into(), "nosuch".into()],
            groups: vec!["ffffff".into()],
            ..Wanted::default()
        };
        let mut selection = Selection::new(wanted, &ProcessTable::default());
        assert!(selection.matches_nothing());
        assert_eq!(selection.keeps((1, ImageId(1)), "bash", || None), Kept::No);
        assert!(selection.matches_nothing());
        assert_eq!(selection.keeps((2, ImageId(2)), "nginx", || None), Kept::Newly);
        assert_eq!(selection.keeps((2, ImageId(2)), "nginx", || None), Kept::Yes);
        assert!(selection.is_wanted(2, ImageId(2)) && !selection.is_wanted(2, ImageId(3)));
        assert!(!selection.matches_nothing());
        let unmatched: Vec<_> = selection.unmatched().collect();
        assert_eq!(unmatched, [(false, "nosuch"), (true, "ffffff")]);
    }

    #[test]
    fn a_group_is_found_by_its_path_in_any_hierarchy() {
        let group = crate::processes::container::parse(
            "9:memory:/a/longer/path\n3:cpu,cpuacct:/t7quota\n1:name=systemd:/\n0::/\n",
        );
        let matches = |wanted: &str| {
            let wanted = Wanted { groups: vec![wanted.into()], ..Wanted::default() };
            wanted.group_matches(&group)
        };
        assert!(matches("t7quota") && matches("/t7quota/") && matches("a/longer/path"));
        assert!(!matches("t7quota/below") && !matches("/") && !matches("t7"));
        let root = crate::processes::container::parse("0::/\n");
        assert!(is_group("/", &root) && !is_group("", &root));
    }

    #[test]
    fn a_long_name_matches_what_the_kernel_kept_of_it() {
        let wanted = Wanted { comms: vec!["a-very-long-program".into()], ..Wanted::default() };
        assert!(wanted.comm_matches("a-very-long-pro"));
        assert!(!wanted.comm_matches("a-very"));
    }
}
