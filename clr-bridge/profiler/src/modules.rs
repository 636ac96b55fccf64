//! Modules: reported before any record refers to them, removed when they are unloaded.

use strata_bridge_protocol::record::{
    MethodUnload, Module as ModuleRecord, ModuleUnload, module_flag,
};

use crate::com::metadata::{IMPORT2, Importer};
use crate::domains;
use crate::image::Image;
use crate::known::Module;
use crate::metadata::{Metadata, Tables};
use crate::scratch::{self, Scratch};
use crate::session::Session;

/// `COR_PRF_MODULE_FLAGS` (corprof.idl).
const DISK: u32 = 1;
const DYNAMIC: u32 = 4;
const FLAT: u32 = 0x20;

/// The module, reported and entered if it was not. One whose record was lost is reported again.
pub fn module(session: &Session, id: usize) -> Option<Module> {
    if id == 0 {
        return None;
    }
    let known = session.known().module(id);
    if known.is_some_and(|module| module.reported) || session.lifetimes().has_ended(id) {
        return known;
    }
    report(session, id, known.as_ref()).or(known)
}

/// Writes the record of a module, and enters the module unless it is `known`.
fn report(session: &Session, id: usize, known: Option<&Module>) -> Option<Module> {
    let mut scratch = scratch::take(session)?;
    let Scratch { units, text: path, second: assembly } = scratch.get();
    let info = session.info().module_info(id, units)?;
    if info.assembly == 0 {
        // Half loaded: a callback will report when it has its assembly.
        return None;
    }
    path.push_units(units.get(..info.path_units as usize).unwrap_or_default());
    let length = session.info().assembly_name(info.assembly, units).unwrap_or(0);
    assembly.push_units(units.get(..length).unwrap_or_default());

    let mut app_domains = [0usize; 4];
    let found = session.info().app_domains_of_module(id, &mut app_domains).unwrap_or(0);
    let app_domain = app_domains.get(..found).and_then(|all| all.first()).copied().unwrap_or(0);
    domains::learn(session, app_domain);

    // SAFETY: the runtime reports that the module's image lies there, mapped or flat.
    let image = unsafe { Image::read(info.base, info.flags & FLAT != 0) };
    let metadata = match known {
        Some(known) => known.metadata,
        None => read_metadata(session, id, &image),
    };
    let mut flags = 0;
    for (set, flag) in [
        (info.flags & DYNAMIC != 0, module_flag::DYNAMIC),
        (info.flags & (DYNAMIC | DISK) == 0, module_flag::IN_MEMORY),
        (image.ready_to_run.is_some(), module_flag::READY_TO_RUN),
        (info.flags & FLAT != 0, module_flag::FLAT),
    ] {
        if set {
            flags |= flag;
        }
    }
    let reported = session.write(&ModuleRecord {
        module: id as u64,
        app_domain: app_domain as u64,
        base: info.base as u64,
        size: image.size,
        mvid: metadata.as_ref().and_then(Metadata::mvid).unwrap_or_default(),
        flags,
        assembly: assembly.as_str(),
        path: path.as_str(),
    });
    if let Some(known) = known {
        if reported {
            session.known().set_reported(known.serial);
        }
        return None;
    }
    let module = Module {
        id,
        serial: 0,
        app_domain,
        base: info.base,
        size: image.size,
        ready_to_run: image.ready_to_run,
        prepared: 0,
        metadata,
        reported,
    };
    let entered = session.known().enter_module(module);
    match entered {
        Ok((module, true)) => {
            session.class_names().enter_module(id, module.metadata);
            Some(module)
        }
        // Another thread was faster, or there is no memory: the reference is not kept.
        Ok((module, false)) => {
            release(metadata);
            Some(module)
        }
        Err(_) => {
            release(metadata);
            None
        }
    }
}

/// The metadata: from the image where that can be read, else from the runtime.
fn read_metadata(session: &Session, id: usize, image: &Image) -> Option<Metadata> {
    match image.metadata.and_then(Tables::parse) {
        Some(tables) => Some(Metadata::Mapped(tables)),
        None => import(session, id).map(Metadata::Importer),
    }
}

fn import(session: &Session, id: usize) -> Option<Importer> {
    let interface = session.info().module_metadata(id, &IMPORT2)?;
    // SAFETY: it was queried by this interface's identity.
    unsafe { Importer::new(interface) }
}

/// The module with metadata that has this token. What its image does not have was added while it
/// runs (by another profiler, by an edit), and its metadata is writable by then anyway.
pub fn with_token(session: &Session, module: Module, token: u32) -> Option<Module> {
    if module.metadata.as_ref()?.has(token) {
        return Some(module);
    }
    let id = module.id;
    let importer = import(session, id)?;
    let (module, taken) = session.known().set_importer(id, importer);
    if taken {
        session.class_names().enter_module(id, module.and_then(|module| module.metadata));
    } else {
        importer.release();
    }
    module.filter(|module| module.metadata.as_ref().is_some_and(|found| found.has(token)))
}

fn release(metadata: Option<Metadata>) {
    if let Some(metadata) = metadata {
        metadata.release();
    }
}

/// A module is unloaded; so are the methods that were reported of it.
pub fn report_end(session: &Session, id: usize) {
    session.class_names().forget_module(id);
    let gone = session.known().forget_module(id, |function, start| {
        session.write(&MethodUnload { function: function as u64, start: start as u64 });
    });
    if let Some(gone) = gone {
        session.write(&ModuleUnload { module: id as u64 });
        release(gone.metadata);
    }
}
