' The kinds of methods that the VB compiler names: lambdas, async methods, iterators, properties.
' usage: Basic seconds-each
'
' First a line "expect NAME" for each, then "ready", then they run in turn.
Imports System
Imports System.Collections.Generic
Imports System.Diagnostics
Imports System.Linq
Imports System.Runtime.CompilerServices
Imports System.Threading.Tasks

Namespace Store
    Public Module Spin
        Public Seconds As Double
        Public Sink As Double = 1

        <MethodImpl(MethodImplOptions.NoInlining)>
        Public Function Here() As Integer
            Dim clock = Stopwatch.StartNew()
            Do
                For i = 1 To 20000
                    Sink = Sink * 1.0000001 + 0.5
                Next
            Loop While clock.Elapsed.TotalSeconds < Seconds
            Return 1
        End Function
    End Module

    Public Class Till
        Private ReadOnly seven As Integer = 7

        Public ReadOnly Property Total As Integer
            Get
                Return Spin.Here()
            End Get
        End Property

        Default Public ReadOnly Property Line(index As Integer) As Integer
            Get
                Return Spin.Here()
            End Get
        End Property

        Public Shared Operator +(a As Till, b As Till) As Till
            Spin.Here()
            Return a
        End Operator

        Public Sub Plain()
            Dim spins As Func(Of Integer) = Function() Spin.Here()
            spins()
        End Sub

        Public Sub Captures(captured As Integer)
            Dim spins As Func(Of Integer) = Function() Spin.Here() + captured
            spins()
        End Sub

        ' It captures nothing but the object, and is a method of its own type.
        Public Sub Own()
            Dim spins As Func(Of Integer) = Function() Spin.Here() + seven
            spins()
        End Sub

        Public Sub Nested(captured As Integer)
            Dim outer As Func(Of Func(Of Integer)) = Function() Function() Spin.Here() + captured
            outer()()
        End Sub

        Public Sub Generic(Of T)(captured As T)
            Dim spins As Func(Of Integer) = Function() Spin.Here() + captured.GetHashCode()
            spins()
        End Sub

        Public Function Later(captured As Integer) As Task(Of Integer)
            Dim spins As Func(Of Task(Of Integer)) =
                Async Function()
                    Await Task.Yield()
                    Return Spin.Here() + captured
                End Function
            Return spins()
        End Function

        Public Async Function Within() As Task(Of Integer)
            Await Task.Yield()
            Dim spins As Func(Of Integer) = Function() Spin.Here()
            Return spins()
        End Function

        Public Async Function Pay() As Task(Of Integer)
            Await Task.Yield()
            Return Spin.Here()
        End Function

        Public Iterator Function Lines() As IEnumerable(Of Integer)
            Yield 1
            Spin.Here()
            Yield 2
        End Function
    End Class

    Public Module Forms
        Public Function All() As List(Of KeyValuePair(Of String, Action))
            Dim till = New Till()
            Dim forms = New List(Of KeyValuePair(Of String, Action))()
            Dim form = Sub(name As String, run As Action) forms.Add(New KeyValuePair(Of String, Action)(name, run))
            form("Store.Till.Total.get", Sub() Spin.Sink += till.Total)
            form("Store.Till.Line.get", Sub() Spin.Sink += till(3))
            form("Store.Till.operator +", Sub() till = till + till)
            form("Store.Till.Plain_Lambda", Sub() till.Plain())
            form("Store.Till.Captures_Lambda", Sub() till.Captures(3))
            form("Store.Till.Own_Lambda", Sub() till.Own())
            form("Store.Till.Nested_Lambda", Sub() till.Nested(3))
            form("Store.Till.Generic<System.Int32>_Lambda", Sub() till.Generic(3))
            form("Store.Till.Later_Lambda", Sub() till.Later(3).Wait())
            form("Store.Till.Within_Lambda", Sub() till.Within().Wait())
            form("Store.Till.Pay", Sub() till.Pay().Wait())
            form("Store.Till.Lines", Sub() Spin.Sink += till.Lines().Count())
            Return forms
        End Function
    End Module
End Namespace

Module Basic
    Function Main(arguments As String()) As Integer
        Store.Spin.Seconds = 0.1
        If arguments.Length > 0 Then
            Store.Spin.Seconds = Double.Parse(arguments(0), Globalization.CultureInfo.InvariantCulture)
        End If
        Dim forms = Store.Forms.All()
        For Each form In forms
            Console.WriteLine("expect " & form.Key)
        Next
        Console.WriteLine("ready")
        Console.Out.Flush()
        For Each form In forms
            form.Value.Invoke()
        Next
        Return 0
    End Function
End Module
