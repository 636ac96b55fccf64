// A method's name as a reader knows it, without type arguments, from the runtime's own reflection.
// Covers the forms that the test programs have.
using System;
using System.Diagnostics;
using System.Reflection;
using System.Text;

internal static class FrameNames
{
    public const string Stub = "(stub)";

    public static string Of(StackFrame frame)
    {
        MethodBase method = frame.GetMethod();
        if (method == null) return Stub;
        if ((method.Attributes & MethodAttributes.PinvokeImpl) != 0) return Stub;
        if (method.DeclaringType == null) return "(dynamic) " + method.Name;
        string type = WithoutArity(method.DeclaringType.FullName ?? method.DeclaringType.Name);
        string name = method.Name;
        int compiled = type.IndexOf("+<", StringComparison.Ordinal);
        string inner = compiled < 0 ? "" : type.Substring(compiled + 2);
        if (compiled >= 0) type = type.Substring(0, compiled);
        if (name.StartsWith("<", StringComparison.Ordinal))
        {
            name = OfCompiledMethod(name, inner.StartsWith(">c__DisplayClass", StringComparison.Ordinal));
        }
        else if (compiled >= 0)
        {
            // The MoveNext of an async method or an iterator.
            name = inner.Substring(0, inner.IndexOf('>'));
        }
        type = type.Replace('+', '.');
        if (name == ".ctor") name = type.Substring(type.LastIndexOf('.') + 1);
        if (name == ".cctor") name = type.Substring(type.LastIndexOf('.') + 1) + " (static)";
        if (name.StartsWith("get_", StringComparison.Ordinal)) name = name.Substring(4) + ".get";
        if (name.StartsWith("set_", StringComparison.Ordinal)) name = name.Substring(4) + ".set";
        return type + "." + name;
    }

    // "<Run>b__3_0" and "<Run>g__Inner|3_0".
    private static string OfCompiledMethod(string name, bool captures)
    {
        string method = name.Substring(1, name.IndexOf('>') - 1);
        int local = name.IndexOf("g__", StringComparison.Ordinal);
        if (local >= 0) return method + "." + name.Substring(local + 3, name.IndexOf('|') - local - 3);
        return method + (captures ? "_AnonymousMethod" : "_Lambda");
    }

    // "List`1[[System.Int32, …]]" and "Outer`1+Inner".
    private static string WithoutArity(string type)
    {
        int arguments = type.IndexOf('[');
        if (arguments >= 0) type = type.Substring(0, arguments);
        var text = new StringBuilder();
        bool arity = false;
        foreach (char c in type)
        {
            arity = c == '`' || arity && c >= '0' && c <= '9';
            if (!arity) text.Append(c);
        }
        return text.ToString();
    }
}
