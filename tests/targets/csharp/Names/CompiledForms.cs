// What the compiler or the runtime names: lambdas, local functions, iterators, anonymous types,
// stubs, dynamic methods.
using System;
using System.Collections.Generic;
using System.Linq;
using System.Reflection.Emit;
using System.Runtime.InteropServices;

namespace Shop
{
    internal class Spinning
    {
        public override bool Equals(object other)
        {
            Spin.Here();
            return true;
        }

        public override int GetHashCode() => 1;
    }

    internal class Till
    {
        public void Lambda()
        {
            Func<int> plain = () => Spin.Here();
            plain();
        }

        public void Captures(int captured)
        {
            Func<int> captures = () => Spin.Here() + captured;
            captures();
        }

        public void Delegate()
        {
            Func<int, int> old = delegate(int x) { return Spin.Here() + x; };
            old(3);
        }

        public void Local(int captured)
        {
            Inner();
            StaticInner();

            int Inner() => Spin.Here() + captured;

            static int StaticInner() => Spin.Here();
        }

        public void Nested(int captured)
        {
            Func<Func<int>> outer = () => () => Spin.Here() + captured;
            outer()();
        }

        public IEnumerable<int> Iterate()
        {
            yield return 1;
            Spin.Here();
            yield return 2;
        }

        public void Compare()
        {
            var one = new { First = new Spinning(), Second = 2 };
            var other = new { First = new Spinning(), Second = 2 };
            one.Equals(other);
        }

        // A switch over many strings hashes them.
        public int Switch(string text)
        {
            switch (text)
            {
                case "one": return 1;
                case "two": return 2;
                case "three": return 3;
                case "four": return 4;
                case "five": return 5;
                case "six": return 6;
                case "seven": return 7;
                default: return 0;
            }
        }

        public void SwitchForLong()
        {
            var text = new string('x', 1 << 20);
            double end = Spin.End(1);
            do Spin.Sink += (ulong)Switch(text);
            while (Target.Now < end);
        }
    }

    internal static class Library
    {
        [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
        private unsafe delegate int Comparison(ulong* first, ulong* second);

        // SetLastError makes it more than a jump: a stub is needed.
        [DllImport("libc", SetLastError = true)]
        private static extern unsafe void qsort(ulong* items, UIntPtr count, UIntPtr size, Comparison compare);

        // Two of one signature have one stub.
        [DllImport("libc", SetLastError = true)]
        private static extern unsafe void* lfind(ulong* key, ulong* items, UIntPtr* count, UIntPtr size, Comparison compare);

        [DllImport("libc", SetLastError = true)]
        private static extern unsafe void* lsearch(ulong* key, ulong* items, UIntPtr* count, UIntPtr size, Comparison compare);

        private static unsafe int Compare(ulong* first, ulong* second) => Spin.Here();

        public static unsafe void Sort()
        {
            ulong* items = stackalloc ulong[2];
            qsort(items, (UIntPtr)2, (UIntPtr)8, Compare);
        }

        public static unsafe void Find()
        {
            ulong* items = stackalloc ulong[2];
            UIntPtr count = (UIntPtr)1;
            lfind(items, items, &count, (UIntPtr)8, Compare);
        }

        public static unsafe void Search()
        {
            ulong* items = stackalloc ulong[2];
            UIntPtr count = (UIntPtr)1;
            lsearch(items, items, &count, (UIntPtr)8, Compare);
        }
    }

    internal static class CompiledForms
    {
        private static Action Dynamic()
        {
            var method = new DynamicMethod("Invoke_1", typeof(void), new Type[0], typeof(CompiledForms).Module, true);
            ILGenerator code = method.GetILGenerator();
            code.Emit(OpCodes.Call, typeof(Spin).GetMethod("Here"));
            code.Emit(OpCodes.Pop);
            code.Emit(OpCodes.Ret);
            return (Action)method.CreateDelegate(typeof(Action));
        }

        public static void Add(List<Form> forms)
        {
            var till = new Till();
            void Form(string name, Action run) => forms.Add(new Form(name, run));

            Form("Shop.Till.Lambda_Lambda", till.Lambda);
            Form("Shop.Till.Captures_AnonymousMethod", () => till.Captures(3));
            Form("Shop.Till.Delegate_Lambda", till.Delegate);
            Form("Shop.Till.Local.Inner", () => till.Local(3));
            Form("Shop.Till.Local.StaticInner", () => { });
            Form("Shop.Till.Nested_AnonymousMethod", () => till.Nested(3));
            Form("Shop.Till.Iterate", () => Spin.Sink += (ulong)till.Iterate().Count());
            Form("AnonymousType0.Equals", till.Compare);
            Form("(compiler) ComputeStringHash", till.SwitchForLong);
            Form("(stub) P/Invoke qsort", Library.Sort);
            Form("(stub) P/Invoke lfind", Library.Find);
            Form("(stub) P/Invoke lsearch", Library.Search);
            Form("(dynamic) Invoke_1", Dynamic());
        }
    }
}
