//! The identity of a file, and how far it can be trusted.
//!
//! A file is its device, inode, size and change time; a build id can be forged by writing it into
//! an ELF. Device numbers of anonymous filesystems come back after an unmount, and a FUSE server
//! answers `stat` with whatever it likes, so an identity states how far it can be trusted
//! ([`IdentityTrust`]). Invariant: no table of one file is ever used for another file whose owner
//! could have chosen this identity.

use std::fmt;

/// A file's identity in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileIdentity {
    pub device: u64,
    pub inode: u64,
    pub size: u64,
    /// Nanoseconds since the epoch of the last change to content or inode. Unlike the modification
    /// time it cannot be set.
    pub ctime_ns: i64,
}

impl fmt::Display for FileIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}-{:x}-{:x}", self.device, self.inode, self.size, self.ctime_ns)
    }
}

/// How far an identity can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IdentityTrust {
    /// A server other than this kernel answers for the file (FUSE, network, unknown): the identity
    /// holds only within one process.
    WithinProcess,
    /// The device number may mean another filesystem after an unmount (overlay, tmpfs, squashfs):
    /// processes may share a table as long as one of them maps the file.
    WhileMapped,
    /// Holds across processes and restarts of strata: may be kept on disk.
    Persistent,
}

/// `f_type` of statfs: include/uapi/linux/magic.h of Linux 6.12 and the filesystems' own headers.
mod magic {
    pub const EXT: u64 = 0xef53;
    pub const XFS: u64 = 0x5846_5342;
    pub const BTRFS: u64 = 0x9123_683e;
    pub const F2FS: u64 = 0xf2f5_2010;
    pub const BCACHEFS: u64 = 0xca45_1a4e;
    pub const ZFS: u64 = 0x2fc1_2fc1;
    pub const JFS: u64 = 0x3153_464a;
    pub const OVERLAY: u64 = 0x794c_7630;
    pub const TMPFS: u64 = 0x0102_1994;
    pub const RAMFS: u64 = 0x8584_58f6;
    pub const HUGETLBFS: u64 = 0x9584_58f6;
    pub const SQUASHFS: u64 = 0x7371_7368;
    pub const EROFS: u64 = 0xe0f5_e1e2;
    pub const ISOFS: u64 = 0x9660;
    pub const UDF: u64 = 0x1501_3346;
    pub const MSDOS: u64 = 0x4d44;
    pub const EXFAT: u64 = 0x2011_bab0;
    pub const NTFS3: u64 = 0x7366_746e;
    pub const NILFS: u64 = 0x3434;
    pub const CRAMFS: u64 = 0x28cd_3d45;
    pub const ROMFS: u64 = 0x7275;
    pub const MINIX3: u64 = 0x4d5a;
}

/// The trust in identities on a filesystem with this `f_type`.
pub fn trust_of_filesystem(filesystem_magic: u64) -> IdentityTrust {
    use magic::*;
    // f_type is a signed long of 32 significant bits.
    match filesystem_magic & 0xffff_ffff {
        EXT | XFS | BTRFS | F2FS | BCACHEFS | ZFS | JFS => IdentityTrust::Persistent,
        OVERLAY | TMPFS | RAMFS | HUGETLBFS | SQUASHFS | EROFS | ISOFS | UDF | MSDOS | EXFAT
        | NTFS3 | NILFS | CRAMFS | ROMFS | MINIX3 => IdentityTrust::WhileMapped,
        _ => IdentityTrust::WithinProcess,
    }
}

/// Whether this kernel alone answers for a filesystem named so in mountinfo, so that opening a
/// file there ends in bounded time. A name that is not in the list is treated as one that may
/// hang.
pub fn answers_locally(filesystem_type: &[u8]) -> bool {
    const LOCAL: &[&[u8]] = &[
        b"bcachefs",
        b"btrfs",
        b"cramfs",
        b"devtmpfs",
        b"erofs",
        b"exfat",
        b"ext2",
        b"ext3",
        b"ext4",
        b"f2fs",
        b"hugetlbfs",
        b"iso9660",
        b"jfs",
        b"minix",
        b"nilfs2",
        b"ntfs3",
        b"overlay",
        b"ramfs",
        b"romfs",
        b"rootfs",
        b"squashfs",
        b"tmpfs",
        b"udf",
        b"vfat",
        b"xfs",
        b"zfs",
    ];
    LOCAL.binary_search(&filesystem_type).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fuse_or_network_identity_is_not_shared() {
        for magic in [0x6573_5546, 0x6969, 0xff53_4d42, 0x0102_1997, 0x517b, 0] {
            assert_eq!(trust_of_filesystem(magic), IdentityTrust::WithinProcess, "{magic:#x}");
        }
        for name in
            ["fuse", "fuseblk", "fuse.sshfs", "nfs4", "cifs", "9p", "virtiofs", "", "autofs"]
        {
            assert!(!answers_locally(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn the_list_of_local_filesystems_is_sorted_and_found() {
        for name in ["bcachefs", "ext4", "overlay", "tmpfs", "xfs", "zfs", "vfat"] {
            assert!(answers_locally(name.as_bytes()), "{name}");
        }
        assert_eq!(trust_of_filesystem(0xef53), IdentityTrust::Persistent);
        assert_eq!(trust_of_filesystem(0x794c_7630), IdentityTrust::WhileMapped);
        assert_eq!(trust_of_filesystem(0xffff_ffff_9123_683e), IdentityTrust::Persistent);
    }
}
