//! Test programs for .NET: their sources, and compiled once per source, options and compiler.
//!
//! A program is `tests/targets/LANGUAGE/Name.ext`, or a folder `Name/` of such files; C# programs
//! get `Target.cs` and `FrameNames.cs` with it. Beside the assembly lie its PDB, the assemblies it
//! refers to and the configuration that lets `dotnet` start it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::dotnet::write_once;
use crate::compile::{OUTPUT, Recipe};
use crate::places;

/// A program or library to be compiled.
#[derive(Clone)]
pub struct Assembly {
    name: String,
    language: Language,
    debug: Debug,
    optimised: bool,
    library: bool,
    symbols: Vec<String>,
    references: Vec<Assembly>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Language {
    CSharp,
    VisualBasic,
    FSharp,
}

/// Where the line numbers go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Debug {
    None,
    /// Into `Name.pdb` beside the assembly.
    Portable,
    /// Into the assembly.
    Embedded,
}

/// What an assembly is compiled against.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Framework {
    /// The reference assemblies of 3.1, which every complete runtime fulfils.
    Standard,
    /// What there is of 10.
    Trimmed,
}

impl Assembly {
    /// The test program of this name, as the tests want it compiled.
    pub fn program(name: &str) -> Self {
        match name {
            "Basic" => Self::new(name, Language::VisualBasic),
            "Functional" => Self::new(name, Language::FSharp),
            "Lines" => Self::csharp(name)
                .debug(Debug::Portable)
                .refers_to(Self::csharp("LinesEmbedded").library().debug(Debug::Embedded)),
            _ => Self::csharp(name),
        }
    }

    /// A C# program: optimised, without debug information.
    pub fn csharp(name: &str) -> Self {
        Self::new(name, Language::CSharp)
    }

    fn new(name: &str, language: Language) -> Self {
        Self {
            name: name.to_string(),
            language,
            debug: Debug::None,
            optimised: true,
            library: false,
            symbols: vec![],
            references: vec![],
        }
    }

    pub fn debug(mut self, debug: Debug) -> Self {
        self.debug = debug;
        self
    }

    /// As a debug build.
    pub fn not_optimised(mut self) -> Self {
        self.optimised = false;
        self
    }

    /// Without an entry point.
    pub fn library(mut self) -> Self {
        self.library = true;
        self
    }

    /// With a symbol for `#if`.
    pub fn define(mut self, symbol: &str) -> Self {
        self.symbols.push(symbol.to_string());
        self
    }

    /// With another assembly, which will lie beside it.
    pub fn refers_to(mut self, other: Self) -> Self {
        self.references.push(other);
        self
    }

    /// Its source files, in a fixed order.
    pub fn sources(&self) -> Result<Vec<PathBuf>> {
        let (folder, ending) = match self.language {
            Language::CSharp => ("csharp", "cs"),
            Language::VisualBasic => ("visualbasic", "vb"),
            Language::FSharp => ("fsharp", "fs"),
        };
        let folder = places::target_sources().join(folder);
        let several = folder.join(&self.name);
        let mut sources = vec![];
        if several.is_dir() {
            for entry in fs::read_dir(&several)? {
                sources.push(entry?.path());
            }
            sources.sort();
        } else {
            sources.push(folder.join(format!("{}.{ending}", self.name)));
        }
        let has_own_needs = self.library || self.name == "Recursion";
        if self.language == Language::CSharp && !has_own_needs {
            sources.push(folder.join("Target.cs"));
            sources.push(folder.join("FrameNames.cs"));
        }
        Ok(sources)
    }

    /// The path of the assembly, compiled if it is not in the cache.
    pub(super) fn build(&self, dotnet: &Path, framework: Framework) -> Result<PathBuf> {
        let mut references = vec![];
        for reference in &self.references {
            references.push(reference.build(dotnet, framework)?);
        }
        let mut sources = self.sources()?;
        let arguments = self.arguments(dotnet, framework, &sources, &references)?;
        sources.extend(references.iter().cloned());
        let folder = Recipe {
            name: self.name.clone(),
            compiler: dotnet.join("9/dotnet"),
            arguments,
            sources,
            directory: places::target_sources(),
            environment: vec![("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT", "1".to_string())],
            strip: false,
            output_is_a_folder: true,
        }
        .build()?;
        if self.language == Language::FSharp {
            references.push(dotnet.join("fsharp/FSharp.Core.dll"));
        }
        for reference in &references {
            let name = reference.file_name().context("an assembly without a name")?;
            write_once(&folder.join(name), &fs::read(reference)?, false)?;
        }
        let configuration = r#"{"runtimeOptions":{"framework":{"name":"Microsoft.NETCore.App","version":"3.1.0"},"rollForward":"LatestMajor"}}"#;
        let configured = folder.join(format!("{}.runtimeconfig.json", self.name));
        write_once(&configured, configuration.as_bytes(), false)?;
        Ok(folder.join(format!("{}.dll", self.name)))
    }

    fn arguments(
        &self,
        dotnet: &Path,
        framework: Framework,
        sources: &[PathBuf],
        references: &[PathBuf],
    ) -> Result<Vec<String>> {
        let mut arguments = match self.language {
            Language::CSharp => command_line(&dotnet.join("csc/csc.dll"), None),
            Language::VisualBasic => {
                let runtime = dotnet.join("csc/csc.runtimeconfig.json");
                command_line(&dotnet.join("csc/vbc.dll"), Some(&runtime))
            }
            Language::FSharp => command_line(&dotnet.join("fsharp/fsc.exe"), None),
        };
        match self.language {
            Language::CSharp => self.csharp_options(&mut arguments),
            Language::VisualBasic => self.visual_basic_options(dotnet, &mut arguments),
            Language::FSharp => self.fsharp_options(&mut arguments),
        }
        if framework == Framework::Trimmed {
            if self.language != Language::CSharp {
                bail!("{} is not in C#: it cannot run on .NET 10 here", self.name);
            }
            arguments.push("-nostdlib".to_string());
            arguments.push("-define:TRIMMED".to_string());
        }
        arguments.extend(self.symbols.iter().map(|symbol| format!("-define:{symbol}")));
        let mut all = framework_assemblies(dotnet, framework)?;
        if self.language == Language::FSharp {
            all.push(dotnet.join("fsharp/FSharp.Core.dll"));
        }
        all.extend(references.iter().cloned());
        arguments.extend(all.iter().map(|file| format!("-r:{}", file.display())));
        arguments.extend(sources.iter().map(|file| file.display().to_string()));
        Ok(arguments)
    }

    fn csharp_options(&self, arguments: &mut Vec<String>) {
        let target = if self.library { "library" } else { "exe" };
        let debug = match self.debug {
            Debug::None => "-debug-",
            Debug::Portable => "-debug:portable",
            Debug::Embedded => "-debug:embedded",
        };
        // 1701: the reference assemblies are of an older version than the runtime.
        let fixed = ["-nologo", "-langversion:8", "-unsafe", "-deterministic", "-nowarn:1701"];
        arguments.extend(fixed.map(String::from));
        arguments.push(format!("-target:{target}"));
        arguments.push(debug.to_string());
        arguments.push(self.optimisation("-optimize"));
        arguments.push(format!("-out:{OUTPUT}/{}.dll", self.name));
    }

    fn visual_basic_options(&self, dotnet: &Path, arguments: &mut Vec<String>) {
        let references = dotnet.join("csc/references");
        arguments.extend(
            [
                "-nologo",
                "-deterministic",
                "-optioninfer+",
                "-optionstrict+",
                "-define:_MYTYPE=\"Empty\"",
            ]
            .map(String::from),
        );
        arguments.push(format!("-sdkpath:{}", references.display()));
        let runtime = references.join("Microsoft.VisualBasic.Core.dll");
        arguments.push(format!("-vbruntime:{}", runtime.display()));
        arguments.push(self.optimisation("-optimize"));
        arguments.push(format!("-out:{OUTPUT}/{}.dll", self.name));
    }

    fn fsharp_options(&self, arguments: &mut Vec<String>) {
        let fixed = [
            "--nologo",
            "--noframework",
            "--nowin32manifest",
            "--targetprofile:netcore",
            "--target:exe",
        ];
        arguments.extend(fixed.map(String::from));
        arguments.push("--deterministic+".to_string());
        arguments.push(self.optimisation("--optimize"));
        arguments.push(self.optimisation("--tailcalls"));
        arguments.push(format!("-o:{OUTPUT}/{}.dll", self.name));
    }

    fn optimisation(&self, option: &str) -> String {
        format!("{option}{}", if self.optimised { '+' } else { '-' })
    }
}

/// `dotnet exec compiler`, with another's configuration where it has none for .NET 9.
fn command_line(compiler: &Path, configuration: Option<&Path>) -> Vec<String> {
    let mut arguments = vec!["exec".to_string()];
    if let Some(configuration) = configuration {
        arguments.push("--runtimeconfig".to_string());
        arguments.push(configuration.display().to_string());
    }
    arguments.push(compiler.display().to_string());
    arguments
}

fn framework_assemblies(dotnet: &Path, framework: Framework) -> Result<Vec<PathBuf>> {
    let folder = match framework {
        Framework::Standard => dotnet.join("csc/references"),
        Framework::Trimmed => dotnet.join("10/framework"),
    };
    let mut assemblies = vec![];
    for entry in fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "dll") {
            assemblies.push(path);
        }
    }
    assemblies.sort();
    Ok(assemblies)
}
