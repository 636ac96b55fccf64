// What `Unloading` loads and unloads again: methods, generics over types of its own, a static.
using System;
using System.Collections.Generic;

public struct PluginValue
{
    public int Number;
    public long More;
}

public class PluginBox<T>
{
    private readonly List<T> items = new List<T>();

    public int Add(T item)
    {
        items.Add(item);
        return items.Count;
    }
}

public static class UnloadingPlugin
{
    private static int calls;

    public static int Work(int value)
    {
        var values = new PluginBox<PluginValue>();
        var texts = new PluginBox<string>();
        var map = new Dictionary<PluginValue, int>();
        calls += values.Add(new PluginValue { Number = value }) + texts.Add("text");
        map[new PluginValue { Number = calls }] = calls;
        for (int i = 20000; i != 0; i--)
        {
            value = value * 3 + 1;
        }
        return value;
    }
}
