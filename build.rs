//! Compiles `shaders/*.comp` to SPIR-V and writes `$OUT_DIR/kernels.rs`: one `gpu::Kernel` for each
//! module, with the interface read back from its SPIR-V, and its words in a file beside.
//! `src/kernels/spirv.rs` includes `kernels.rs`.
//!
//! A shader is GLSL 4.60 for Vulkan 1.2. It may `#include "x.glsl"` from `shaders/include/`. A line
//! `// Variant NAME: DEFINE=VALUE DEFINE` in it asks for a module NAME compiled with these macros;
//! without any such line there is one module, named like the file. A NAME with `TYPE` in it stands
//! for a module of each type that the lines `// Types A B` name, with FORMAT=A and so on.
//!
//! The interface rules (one descriptor set of storage buffers numbered without gaps, 32-bit
//! specialization constants, one push constant block) are checked here, so that a shader that
//! breaks them fails the build. `tests/vulkan_shader_build.rs` compiles this file as a module.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use glslang::error::GlslangError;
use glslang::include::{IncludeHandler, IncludeResult, IncludeType};
use glslang::{
    Compiler, CompilerOptions, ShaderInput, ShaderMessage, ShaderSource, ShaderStage,
    SourceLanguage, SpirvVersion, Target, VulkanVersion,
};
use rspirv::binary::ParseState;
use rspirv::dr::{Instruction, Loader, Module, Operand};
use rspirv::spirv::{Capability, Decoration, Op, StorageClass};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=shaders");
    let out_dir = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    match build_all(Path::new("shaders")) {
        Ok(modules) => {
            for (name, (_, words)) in &modules {
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
                fs::write(out_dir.join(format!("{name}.spv")), bytes).expect("OUT_DIR is writable");
            }
            let text = generate(&modules);
            fs::write(out_dir.join("kernels.rs"), text).expect("OUT_DIR is writable");
        }
        Err(messages) => {
            for line in messages.lines().filter(|line| !line.trim().is_empty()) {
                println!("cargo::error={line}");
            }
            std::process::exit(1);
        }
    }
}

/// One module to compile.
#[derive(Debug, PartialEq, Eq)]
pub struct Variant {
    /// Name of the kernel.
    pub name: String,
    /// Macros and their values.
    pub defines: Vec<(String, Option<String>)>,
}

/// What a module's SPIR-V says about its interface.
#[derive(Debug, PartialEq, Eq)]
pub struct Interface {
    /// Whether each binding is written.
    pub binding_writes: Vec<bool>,
    /// Size of the push constant block, in bytes.
    pub push_bytes: u32,
    /// Highest specialization constant id, plus one.
    pub spec_count: u32,
    /// Whether it declares a subgroup capability beyond the plain built-ins.
    pub uses_subgroups: bool,
    /// Whether it declares cooperative matrices.
    pub uses_matrices: bool,
}

/// Modules by name, with their words.
type Modules = BTreeMap<String, (Interface, Vec<u32>)>;

/// Compiles every shader of `folder`, none where it does not exist.
fn build_all(folder: &Path) -> Result<Modules, String> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .map(|entries| entries.filter_map(|entry| entry.ok().map(|e| e.path())).collect())
        .unwrap_or_default();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "comp"));
    files.sort();

    let mut modules = BTreeMap::new();
    let mut errors = String::new();
    for file in &files {
        let source = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        let variants = match variants(&source, file) {
            Ok(variants) => variants,
            Err(message) => {
                writeln!(errors, "{message}").expect("a String takes all");
                continue;
            }
        };
        for variant in variants {
            let built = compile(file, &source, &variant, &folder.join("include"))
                .and_then(|words| Ok((reflect(&words)?, words)))
                .map_err(|message| format!("{} ({}): {message}", file.display(), variant.name));
            match built {
                Ok(module) => {
                    if modules.insert(variant.name.clone(), module).is_some() {
                        let name = variant.name;
                        writeln!(errors, "{}: a second module {name}", file.display())
                            .expect("a String takes all");
                    }
                }
                Err(message) => writeln!(errors, "{message}").expect("a String takes all"),
            }
        }
    }
    if errors.is_empty() { Ok(modules) } else { Err(errors) }
}

/// The modules that the header of a shader asks for.
pub fn variants(source: &str, file: &Path) -> Result<Vec<Variant>, String> {
    let types: Vec<&str> = (source.lines().filter_map(|line| line.strip_prefix("// Types ")))
        .flat_map(str::split_whitespace)
        .collect();
    let mut found = Vec::new();
    for (index, line) in source.lines().enumerate() {
        let Some(text) = line.trim_start().strip_prefix("// Variant ") else { continue };
        let (name, macros) = text.split_once(':').unwrap_or((text, ""));
        let defines: Vec<_> = macros.split_whitespace().map(define).collect();
        let each: Vec<Variant> = if name.contains("TYPE") {
            let of_type = |kind: &&str| Variant {
                name: name.trim().replace("TYPE", &kind.to_lowercase()),
                defines: [define(&format!("FORMAT={kind}"))]
                    .into_iter()
                    .chain(defines.clone())
                    .collect(),
            };
            types.iter().map(of_type).collect()
        } else {
            vec![Variant { name: name.trim().to_owned(), defines }]
        };
        let wrong = each.iter().find(|variant| !is_kernel_name(&variant.name));
        if let Some(Variant { name, .. }) = wrong {
            let at = format!("{}:{}", file.display(), index + 1);
            return Err(format!("{at}: {name:?} is no kernel name (a-z, 0-9, _)"));
        }
        found.extend(each);
    }
    if found.is_empty() {
        let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        if !is_kernel_name(stem) {
            return Err(format!("{}: the name is no kernel name (a-z, 0-9, _)", file.display()));
        }
        found.push(Variant { name: stem.to_owned(), defines: Vec::new() });
    }
    Ok(found)
}

/// `KEY=VALUE` or `KEY`.
fn define(text: &str) -> (String, Option<String>) {
    match text.split_once('=') {
        Some((key, value)) => (key.to_owned(), Some(value.to_owned())),
        None => (text.to_owned(), None),
    }
}

fn is_kernel_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// Finds `#include "x.glsl"` in one folder.
struct Includes {
    folder: PathBuf,
}

impl IncludeHandler for Includes {
    fn include(
        &mut self,
        _: IncludeType,
        name: &str,
        _includer: &str,
        _depth: usize,
    ) -> Option<IncludeResult> {
        let path = self.folder.join(name);
        let data = fs::read_to_string(&path).ok()?;
        Some(IncludeResult { name: path.display().to_string(), data })
    }
}

/// Compiles one module. An error has glslang's lines, with the shader's path in place of `0`.
pub fn compile(
    file: &Path,
    source: &str,
    variant: &Variant,
    include_folder: &Path,
) -> Result<Vec<u32>, String> {
    let compiler = Compiler::acquire().ok_or("glslang did not start")?;
    let source = ShaderSource::from(source);
    let options = CompilerOptions {
        source_language: SourceLanguage::GLSL,
        target: Target::Vulkan {
            version: VulkanVersion::Vulkan1_2,
            spirv_version: SpirvVersion::SPIRV1_5,
        },
        version_profile: None,
        messages: ShaderMessage::VULKAN_RULES | ShaderMessage::SPV_RULES,
    };
    let defines: Vec<(&str, Option<&str>)> =
        variant.defines.iter().map(|(key, value)| (key.as_str(), value.as_deref())).collect();
    let mut includes = Includes { folder: include_folder.to_owned() };
    let input = ShaderInput::new(
        &source,
        ShaderStage::Compute,
        &options,
        Some(&defines[..]),
        Some(&mut includes),
    )
    .map_err(|error| error.to_string())?;
    let shader = compiler.create_shader(input).map_err(|error| describe(&error, file))?;
    shader.compile().map_err(|error| describe(&error, file))
}

/// glslang calls the main file `0`: give it its name.
fn describe(error: &GlslangError, file: &Path) -> String {
    let log = match error {
        GlslangError::ParseError(log)
        | GlslangError::LinkError(log)
        | GlslangError::PreprocessError(log) => log.log.clone(),
        other => other.to_string(),
    };
    log.lines()
        .map(|line| line.replacen("ERROR: 0:", &format!("ERROR: {}:", file.display()), 1))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Reads a module's interface and checks it against the rules of `gpu::Kernel`.
pub fn reflect(words: &[u32]) -> Result<Interface, String> {
    let mut loader = Loader::new();
    rspirv::binary::parse_words(words, &mut loader)
        .map_err(|state: ParseState| format!("unreadable SPIR-V: {state}"))?;
    let module = loader.module();
    let mut reader = Reader::new(&module);
    reader.read_spec_constants()?;
    let binding_writes = reader.bindings()?;
    let push_bytes = reader.push_bytes()?;
    Ok(Interface {
        binding_writes,
        push_bytes,
        spec_count: reader.spec_count,
        uses_subgroups: uses_subgroups(&module),
        uses_matrices: declares(&module, |it| it == Capability::CooperativeMatrixKHR),
    })
}

fn uses_subgroups(module: &Module) -> bool {
    declares(module, |capability| {
        matches!(
            capability,
            Capability::GroupNonUniformVote
                | Capability::GroupNonUniformArithmetic
                | Capability::GroupNonUniformBallot
                | Capability::GroupNonUniformShuffle
                | Capability::GroupNonUniformShuffleRelative
                | Capability::GroupNonUniformClustered
                | Capability::GroupNonUniformQuad
                | Capability::GroupNonUniformRotateKHR
        )
    })
}

/// Whether a module declares such a capability.
fn declares(module: &Module, wanted: impl Fn(Capability) -> bool) -> bool {
    module.capabilities.iter().any(|instruction| match instruction.operands.first() {
        Some(Operand::Capability(capability)) => wanted(*capability),
        _ => false,
    })
}

/// Types, variables and decorations of a module, by id.
struct Reader<'m> {
    globals: HashMap<u32, &'m Instruction>,
    /// Decorations of an id, with their first literal.
    decorations: HashMap<u32, Vec<(Decoration, u32)>>,
    /// Decorations of a struct's members.
    member_decorations: HashMap<(u32, u32), Vec<(Decoration, u32)>>,
    spec_count: u32,
}

impl<'m> Reader<'m> {
    fn new(module: &'m Module) -> Self {
        let globals = module
            .types_global_values
            .iter()
            .filter_map(|instruction| instruction.result_id.map(|id| (id, instruction)))
            .collect();
        let mut decorations: HashMap<u32, Vec<_>> = HashMap::new();
        let mut member_decorations: HashMap<(u32, u32), Vec<_>> = HashMap::new();
        for annotation in &module.annotations {
            match (annotation.class.opcode, annotation.operands.as_slice()) {
                (Op::Decorate, [Operand::IdRef(id), Operand::Decoration(what), rest @ ..]) => {
                    decorations.entry(*id).or_default().push((*what, literal(rest)));
                }
                (
                    Op::MemberDecorate,
                    [
                        Operand::IdRef(id),
                        Operand::LiteralBit32(member),
                        Operand::Decoration(what),
                        rest @ ..,
                    ],
                ) => member_decorations
                    .entry((*id, *member))
                    .or_default()
                    .push((*what, literal(rest))),
                _ => {}
            }
        }
        Self { globals, decorations, member_decorations, spec_count: 0 }
    }

    fn decoration(&self, id: u32, wanted: Decoration) -> Option<u32> {
        find(self.decorations.get(&id), wanted)
    }

    fn read_spec_constants(&mut self) -> Result<(), String> {
        for (&id, constant) in &self.globals {
            let Some(spec_id) = self.decoration(id, Decoration::SpecId) else { continue };
            let is_bool =
                matches!(constant.class.opcode, Op::SpecConstantTrue | Op::SpecConstantFalse);
            let kind = constant.result_type.expect("a constant has a type");
            if !is_bool && self.type_bytes(kind)? != 4 {
                return Err(format!("specialization constant {spec_id} is not 32 bits wide"));
            }
            self.spec_count = self.spec_count.max(spec_id + 1);
        }
        if self.spec_count < 3 {
            return Err("constants 0, 1 and 2 must be the local size: \
                        layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in"
                .to_owned());
        }
        Ok(())
    }

    /// Module variables of a storage class, with the type they point to.
    fn variables(&self, class: StorageClass) -> Vec<(u32, u32)> {
        let mut found = Vec::new();
        for (&id, variable) in &self.globals {
            if variable.class.opcode != Op::Variable
                || variable.operands.first() != Some(&Operand::StorageClass(class))
            {
                continue;
            }
            let pointer = self.globals[&variable.result_type.expect("a variable has a type")];
            found.push((id, id_at(pointer, 1)));
        }
        found
    }

    fn bindings(&self) -> Result<Vec<bool>, String> {
        for class in [StorageClass::Uniform, StorageClass::UniformConstant] {
            if !self.variables(class).is_empty() {
                return Err("only storage buffers and push constants may be bound".to_owned());
            }
        }
        let mut writes: BTreeMap<u32, bool> = BTreeMap::new();
        for (id, block) in self.variables(StorageClass::StorageBuffer) {
            let binding =
                self.decoration(id, Decoration::Binding).ok_or("a buffer lacks binding")?;
            if self.decoration(id, Decoration::DescriptorSet).unwrap_or(0) != 0 {
                return Err(format!("binding {binding} is not in descriptor set 0"));
            }
            if self.globals[&block].class.opcode != Op::TypeStruct {
                return Err(format!("binding {binding} is an array of buffers"));
            }
            // Two blocks may view one binding through different types: it is written if one is.
            *writes.entry(binding).or_default() |= !self.is_readonly(id, block);
        }
        if writes.keys().copied().ne(0..writes.len() as u32) {
            return Err(format!(
                "bindings {:?} are not numbered from 0 without gaps",
                writes.keys()
            ));
        }
        Ok(writes.into_values().collect())
    }

    fn is_readonly(&self, variable: u32, block: u32) -> bool {
        self.decoration(variable, Decoration::NonWritable).is_some()
            || (0..self.globals[&block].operands.len() as u32).all(|member| {
                find(self.member_decorations.get(&(block, member)), Decoration::NonWritable)
                    .is_some()
            })
    }

    fn push_bytes(&self) -> Result<u32, String> {
        match self.variables(StorageClass::PushConstant).as_slice() {
            [] => Ok(0),
            [(_, block)] => self.type_bytes(*block),
            _ => Err("more than one push constant block".to_owned()),
        }
    }

    /// Size of a type in a block.
    fn type_bytes(&self, id: u32) -> Result<u32, String> {
        let kind = self.globals[&id];
        match kind.class.opcode {
            Op::TypeInt | Op::TypeFloat => Ok(literal(&kind.operands) / 8),
            Op::TypeVector => Ok(self.type_bytes(id_at(kind, 0))? * literal(&kind.operands[1..])),
            Op::TypeArray => {
                let stride = self.decoration(id, Decoration::ArrayStride);
                let length = self.globals[&id_at(kind, 1)];
                Ok(stride.ok_or("an array lacks its stride")? * literal(&length.operands))
            }
            Op::TypeStruct => {
                let mut bytes = 0;
                for member in 0..kind.operands.len() as u32 {
                    let decorations = self.member_decorations.get(&(id, member));
                    let offset = find(decorations, Decoration::Offset).unwrap_or(0);
                    let size = self.type_bytes(id_at(kind, member as usize))?;
                    bytes = bytes.max(offset + size);
                }
                // A Rust `repr(C)` struct of 4-byte fields has the same size.
                Ok(bytes.next_multiple_of(4))
            }
            other => Err(format!("a push constant or constant of type {other:?}")),
        }
    }
}

fn find(decorations: Option<&Vec<(Decoration, u32)>>, wanted: Decoration) -> Option<u32> {
    decorations?.iter().find(|(what, _)| *what == wanted).map(|(_, value)| *value)
}

fn literal(operands: &[Operand]) -> u32 {
    match operands.first() {
        Some(Operand::LiteralBit32(value)) => *value,
        _ => 0,
    }
}

fn id_at(instruction: &Instruction, index: usize) -> u32 {
    match instruction.operands.get(index) {
        Some(Operand::IdRef(id)) => *id,
        other => panic!("an id expected in {instruction:?}, found {other:?}"),
    }
}

/// Writes the Rust text.
fn generate(modules: &Modules) -> String {
    let mut text = String::from("// Written by build.rs.\n\n");
    for (name, (interface, words)) in modules {
        let ident = name.to_uppercase();
        let access = |&written: &bool| if written { "Access::Write" } else { "Access::Read" };
        let bindings: Vec<_> = interface.binding_writes.iter().map(access).collect();
        let Interface { push_bytes, spec_count, uses_subgroups, uses_matrices, .. } = interface;
        let count = words.len();
        write!(
            text,
            "static {ident}_WORDS: [u32; {count}] =\n    \
             bytemuck::must_cast(*include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{name}.spv\")));\n\
             /// `{name}`.\npub static {ident}: Kernel = Kernel {{\n    name: \"{name}\",\n    \
             words: &{ident}_WORDS,\n    bindings: &[{}],\n    push_bytes: {push_bytes},\n    \
             spec_count: {spec_count},\n    uses_subgroups: {uses_subgroups},\n    \
             uses_matrices: {uses_matrices},\n}};\n\
             /// Size of the push constants of `{name}`, in bytes.\n\
             pub const {ident}_PUSH_BYTES: u32 = {push_bytes};\n\
             /// Bindings of `{name}`.\n\
             pub const {ident}_BINDINGS: usize = {};\n\
             /// Specialization constants of `{name}`.\n\
             pub const {ident}_SPECS: u32 = {spec_count};\n\n",
            bindings.join(", "),
            bindings.len(),
        )
        .expect("a String takes all");
    }
    let mut hash = 0xcbf2_9ce4_8422_2325_u64; // FNV-1a
    for word in modules.values().flat_map(|(_, words)| words) {
        hash = (hash ^ u64::from(*word)).wrapping_mul(0x0100_0000_01b3);
    }
    writeln!(text, "/// Of all modules: another one, where a shader changed.")
        .and_then(|()| writeln!(text, "pub const HASH: u64 = {hash:#x};\n"))
        .expect("a String takes all");
    let all: Vec<_> = modules.keys().map(|name| format!("&{}", name.to_uppercase())).collect();
    writeln!(
        text,
        "/// Every kernel, in the order of their names.\npub static ALL: &[&Kernel] = &[{}];",
        all.join(", ")
    )
    .expect("a String takes all");
    text
}
