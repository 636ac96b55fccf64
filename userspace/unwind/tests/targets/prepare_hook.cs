// A start-up hook that compiles all methods of framework assemblies, says "ready", and stays.
using System;
using System.Reflection;
using System.Runtime.CompilerServices;
using System.Threading;

internal class StartupHook
{
    public static void Initialize()
    {
        var all = BindingFlags.DeclaredOnly | BindingFlags.Instance | BindingFlags.Static | BindingFlags.Public | BindingFlags.NonPublic;
        foreach (var name in new[] { "System.Private.Xml", "System.Linq.Expressions", "System.Collections" })
        {
            Type[] types;
            try { types = Assembly.Load(name).GetTypes(); } catch (ReflectionTypeLoadException e) { types = e.Types; }
            foreach (var type in types)
            {
                if (type == null || type.ContainsGenericParameters) continue;
                MemberInfo[] members;
                try { members = type.GetMembers(all); } catch (Exception) { continue; }
                foreach (var member in members)
                    if (member is MethodBase method && !method.IsAbstract && !method.ContainsGenericParameters)
                        try { RuntimeHelpers.PrepareMethod(method.MethodHandle); } catch (Exception) { }
            }
        }
        Console.WriteLine("ready");
        Thread.Sleep(Timeout.Infinite);
    }
}
