// Prints what System.Reflection.Metadata reads out of an assembly and its PDB, one fact a line, for
// comparison with strata's reader.
//
// Metadata.dll FILE.dll [FILE.pdb]
using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Reflection.Metadata;
using System.Reflection.Metadata.Ecma335;
using System.Reflection.PortableExecutable;

public static class Program
{
    private static MetadataReader reader;
    private static StreamWriter output;

    public static void Main(string[] arguments)
    {
        using var file = new PEReader(File.OpenRead(arguments[0]));
        output = new StreamWriter(Console.OpenStandardOutput());
        reader = file.GetMetadataReader();
        var module = reader.GetModuleDefinition();
        Say("mvid", Hex(reader.GetGuid(module.Mvid).ToByteArray()));
        Say("assembly", reader.GetString(reader.GetAssemblyDefinition().Name));
        foreach (var handle in reader.MethodDefinitions)
        {
            var method = reader.GetMethodDefinition(handle);
            var type = method.GetDeclaringType();
            Say(
                "method",
                Token(handle),
                TypeName(type),
                reader.GetString(method.Name),
                Parameters(reader.GetTypeDefinition(type).GetGenericParameters()),
                Parameters(method.GetGenericParameters()),
                Hex(reader.GetBlobBytes(method.Signature)));
        }
        foreach (var handle in reader.TypeReferences)
        {
            Say("type", Token(handle), RefName(handle));
        }
        foreach (var handle in reader.MemberReferences)
        {
            var member = reader.GetMemberReference(handle);
            Say("member", Token(handle), reader.GetString(member.Name), Hex(reader.GetBlobBytes(member.Signature)));
        }
        Pdb(file, arguments);
        output.Flush();
    }

    private static void Pdb(PEReader file, string[] arguments)
    {
        MetadataReaderProvider provider = null;
        foreach (var entry in file.ReadDebugDirectory())
        {
            if (entry.Type == DebugDirectoryEntryType.CodeView)
            {
                var view = file.ReadCodeViewDebugDirectoryData(entry);
                if (entry.IsPortableCodeView)
                {
                    Say("pdb", Hex(view.Guid.ToByteArray()) + Hex(BitConverter.GetBytes(entry.Stamp)), view.Age.ToString(), view.Path);
                }
            }
            if (entry.Type == DebugDirectoryEntryType.EmbeddedPortablePdb)
            {
                provider = file.ReadEmbeddedPortablePdbDebugDirectoryData(entry);
            }
        }
        if (arguments.Length > 1)
        {
            provider = MetadataReaderProvider.FromPortablePdbStream(File.OpenRead(arguments[1]));
        }
        if (provider == null)
        {
            return;
        }
        var pdb = provider.GetMetadataReader();
        Say("id", Hex(pdb.DebugMetadataHeader.Id.ToArray()));
        foreach (var handle in pdb.MethodDebugInformation)
        {
            var information = pdb.GetMethodDebugInformation(handle);
            var token = Token(handle.ToDefinitionHandle());
            foreach (var point in information.GetSequencePoints())
            {
                var document = pdb.GetString(pdb.GetDocument(point.Document).Name);
                Say("point", token, point.Offset.ToString(), document, point.IsHidden ? "0" : point.StartLine.ToString());
            }
            var kickoff = information.GetStateMachineKickoffMethod();
            if (!kickoff.IsNil)
            {
                Say("kickoff", token, Token(kickoff));
            }
        }
    }

    private static string TypeName(TypeDefinitionHandle handle)
    {
        var type = reader.GetTypeDefinition(handle);
        var name = reader.GetString(type.Name);
        var outer = type.GetDeclaringType();
        return outer.IsNil ? Qualified(reader.GetString(type.Namespace), name) : TypeName(outer) + "+" + name;
    }

    private static string RefName(TypeReferenceHandle handle)
    {
        var type = reader.GetTypeReference(handle);
        var name = reader.GetString(type.Name);
        return type.ResolutionScope.Kind == HandleKind.TypeReference
            ? RefName((TypeReferenceHandle)type.ResolutionScope) + "+" + name
            : Qualified(reader.GetString(type.Namespace), name);
    }

    private static string Qualified(string space, string name)
    {
        return space.Length == 0 ? name : space + "." + name;
    }

    private static string Parameters(GenericParameterHandleCollection handles)
    {
        return string.Join(",", handles.Select(handle => reader.GetString(reader.GetGenericParameter(handle).Name)));
    }

    private static string Token(EntityHandle handle)
    {
        return MetadataTokens.GetToken(handle).ToString("x8");
    }

    private static string Hex(byte[] bytes)
    {
        return BitConverter.ToString(bytes).Replace("-", "").ToLowerInvariant();
    }

    private static void Say(params string[] words)
    {
        output.WriteLine(string.Join("\t", words));
    }
}
