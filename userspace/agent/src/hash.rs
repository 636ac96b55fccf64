//! Hash tables for what every turn looks up. SipHash costs more than the rest of such a lookup;
//! these hash with foldhash, whose seed is random for each table, because keys come from hostile
//! processes.

use foldhash::fast::RandomState;

pub type HashMap<K, V> = std::collections::HashMap<K, V, RandomState>;
pub type HashSet<K> = std::collections::HashSet<K, RandomState>;
