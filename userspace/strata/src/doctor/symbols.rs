//! The sources of symbols: the kernel's, debug files.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};

use super::environment::{Capability, Environment, setting};
use super::line::{Group, Line};
use super::parse;

const GROUP: Group = Group::Symbols;
const DEBUG_FILES: &str = "/usr/lib/debug";

/// `names_kernel`: a BPF program names the kernel's functions.
pub fn lines(environment: &Environment, names_kernel: bool) -> Vec<Line> {
    vec![kernel_symbols(environment, names_kernel), debug_files(environment)]
}

fn kernel_symbols(environment: &Environment, names_kernel: bool) -> Line {
    let name = "kernel symbols";
    let lost = if names_kernel {
        "trimming of off-CPU stacks: they begin with the sampler's own frames"
    } else {
        "names of kernel functions"
    };
    let file = match File::open("/proc/kallsyms") {
        Ok(file) => file,
        Err(error) => {
            let fix = if error.kind() == std::io::ErrorKind::NotFound {
                "boot a kernel built with CONFIG_KALLSYMS=y".to_owned()
            } else {
                environment.privilege_fix(&[Capability::SYSLOG])
            };
            return Line::degraded(GROUP, name, format!("/proc/kallsyms: {error}"), lost, fix);
        }
    };
    // Addresses are shown or hidden all at once; the first ones may be zero either way.
    let shown = BufReader::new(file)
        .lines()
        .map_while(Result::ok)
        .take(2000)
        .any(|line| parse::has_address(&line));
    let restriction = setting("kernel/kptr_restrict");
    if shown {
        return Line::ok(GROUP, name, "/proc/kallsyms shows addresses");
    }
    let fix = match restriction {
        Some(2..) => environment.as_root("sysctl -w kernel.kptr_restrict=1"),
        _ => environment.privilege_fix(&[Capability::SYSLOG]),
    };
    let setting = restriction.map_or_else(|| "?".to_owned(), |value| value.to_string());
    Line::degraded(
        GROUP,
        name,
        format!("/proc/kallsyms hides addresses (kernel.kptr_restrict = {setting})"),
        lost,
        fix,
    )
}

fn debug_files(environment: &Environment) -> Line {
    let name = "debug files";
    let mut places: Vec<String> = fs::read_dir(DEBUG_FILES)
        .map(|entries| {
            entries
                .flatten()
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .collect()
        })
        .unwrap_or_default();
    // Languages put other things there, too.
    places.retain(|place| {
        matches!(
            place.as_str(),
            ".build-id" | ".dwz" | "usr" | "lib" | "lib64" | "bin" | "sbin" | "opt"
        )
    });
    if !places.is_empty() {
        places.sort();
        return Line::ok(GROUP, name, format!("{DEBUG_FILES}/{{{}}}", places.join(",")));
    }
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    Line::degraded(
        GROUP,
        name,
        format!("none in {DEBUG_FILES}"),
        "lines, inlined and static functions of programs that were stripped",
        debug_packages(&release, environment),
    )
}

fn debug_packages(release: &str, environment: &Environment) -> String {
    let is = |name: &str| {
        [parse::release_field(release, "ID"), parse::release_field(release, "ID_LIKE")]
            .into_iter()
            .flatten()
            .any(|ids| ids.split(' ').any(|id| id == name))
    };
    if is("debian") || is("ubuntu") {
        environment.as_root(
            "apt-get install libc6-dbg (and the -dbg or -dbgsym packages of what you profile)",
        )
    } else if is("fedora") || is("rhel") {
        environment.as_root("dnf debuginfo-install glibc (and what you profile)")
    } else if is("suse") || is("opensuse") {
        environment.as_root("zypper install glibc-debuginfo (and those of what you profile)")
    } else {
        "install the debug packages of libc and of what you profile".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_command_is_that_of_the_distribution() {
        let environment = Environment::read();
        let command = |text| debug_packages(text, &environment);
        assert!(command("NAME=\"Ubuntu\"\nID=ubuntu\nID_LIKE=debian\n").contains("apt-get"));
        assert!(command("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n").contains("dnf"));
        assert!(command("ID=other\n").contains("install the debug packages"));
    }
}
